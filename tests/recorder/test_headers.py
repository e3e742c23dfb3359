"""What is kept of heads: names on the list, nothing else, and no query value that might be a key."""

import pytest

from recorder.headers import clean_url, kept


def test_kept_names_are_lowered_and_keep_their_order_and_repetitions() -> None:
    headers = [("X-Request-Id", "1"), ("Host", "h"), ("User-Agent", "u"), ("x-request-id", "2")]
    assert kept(headers) == (("x-request-id", "1"), ("user-agent", "u"), ("x-request-id", "2"))


@pytest.mark.parametrize(
    "name",
    ["content-type", "anthropic-beta", "x-claude-code-agent-id", "x-session-id", "thread-id", "x-codex-turn-metadata"],
)
def test_headers_that_say_who_speaks_are_kept(name: str) -> None:
    assert kept([(name, "v")]) == ((name, "v"),)


@pytest.mark.parametrize(
    "name",
    [
        *("Authorization", "X-Api-Key", "Cookie", "Set-Cookie", "Api-Key", "X-Goog-Api-Key", "Proxy-Authorization"),
        *(
            "x-amz-security-token",
            "x-codex-access-token",
            "x-claude-code-auth",
            "x-stainless-secret",
            "chatgpt-account-id",
        ),
    ],
)
def test_credentials_are_never_kept(name: str) -> None:
    assert kept([(name, "v")]) == ()


def test_rate_limits_count_tokens_and_are_kept() -> None:
    names = ["anthropic-ratelimit-tokens-remaining", "x-ratelimit-limit-tokens"]
    assert [n for n, _ in kept([(n, "9") for n in names])] == names


@pytest.mark.parametrize(
    ("url", "clean"),
    [
        ("https://h/v1/messages?beta=true", "https://h/v1/messages?beta=true"),
        ("https://h:443/p", "https://h:443/p"),
        ("https://h/p?key=AIza", "https://h/p?key=REDACTED"),
        ("https://h/p?alt=sse&KEY=a%20b&x", "https://h/p?alt=sse&KEY=REDACTED&REDACTED"),
        ("https://user:pass@h/p?beta=true", "https://h/p?beta=true"),
        ("https://h/p?a=1#token", "https://h/p?a=REDACTED"),
        ("https://h/p?empty=", "https://h/p?empty="),
    ],
)
def test_a_url_keeps_only_harmless_values(url: str, clean: str) -> None:
    assert clean_url(url) == clean
    assert clean_url(clean) == clean
