"""What of a request's head may be kept: headers by allow-list, query values by allow-list. Credentials never pass.

Every way into the store goes through here: a new header is lost until it is named; it never leaks until noticed.
"""

import re
from collections.abc import Iterable
from urllib.parse import quote, unquote_plus, urlsplit, urlunsplit

REDACTED = "REDACTED"

KEPT = frozenset(
    (
        "content-type",
        "content-encoding",
        "content-length",
        "transfer-encoding",
        "user-agent",
        "retry-after",
        "date",
        "request-id",
        "x-request-id",
        "x-client-request-id",
        "x-amzn-requestid",
        "openai-processing-ms",
        "anthropic-version",
        "anthropic-beta",
        "anthropic-client-capabilities",
        "anthropic-dangerous-direct-browser-access",
        "openai-version",
        "openai-beta",
        "x-app",
        "originator",
        "version",
        "x-session-id",
        "x-session-affinity",
        "x-parent-session-id",
        "session-id",
        "thread-id",
        "conversation-id",
        "x-goog-api-client",
    )
)
"""Names that say who speaks, which format, and how it ended (WIRE.md section 2)."""

KEPT_PREFIXES = (
    "x-claude-code-",
    "x-claude-1p-",
    "x-cc-",
    "x-codex-",
    "x-stainless-",
    "x-opencode-",
    "x-qwen-code-",
    "x-dashscope-user",
    "anthropic-ratelimit-",
    "x-ratelimit-",
    "x-amzn-bedrock-",
    "x-memorywalker-",
)
FORBIDDEN = re.compile(
    r"auth|cookie|key|secret|password|credential|signature|(?<!bedrock-input-)(?<!output-)token(?!s|-count)"
)
"""Kept by no prefix: a vendor may add `x-codex-token` one day. Rate limits count `tokens`, plural."""

KEPT_QUERY = frozenset(
    (
        "beta",
        "alt",
        "api-version",
        "client_version",
        "stream",
        "entrypoint",
        "limit",
        "order",
        "after",
        "before",
        "include",
        "model",
        "version",
    )
)


def kept(headers: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """The allow-listed headers, names in lower case, order and repetitions as sent."""
    lowered = ((name.lower(), value) for name, value in headers)
    return tuple((name, value) for name, value in lowered if is_kept(name))


def is_kept(name: str) -> bool:
    """Whether a header of this name (lower case) is stored."""
    return name in KEPT or (name.startswith(KEPT_PREFIXES) and not FORBIDDEN.search(name))


def clean_url(url: str) -> str:
    """The URL without user, password and fragment; values of query parameters not known as harmless are `REDACTED`."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url.split("?", 1)[0]
    if not parts.query and not parts.fragment and "@" not in parts.netloc:
        return url
    query = "&".join(_clean_pair(pair) for pair in parts.query.split("&")) if parts.query else ""
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, query, ""))


def _clean_pair(pair: str) -> str:
    name, equals, value = pair.partition("=")
    if not equals:
        return pair if unquote_plus(name).lower() in KEPT_QUERY else REDACTED
    if unquote_plus(name).lower() in KEPT_QUERY or not value:
        return pair
    return f"{quote(unquote_plus(name))}={REDACTED}"
