"""Which harness a command is, and what it finds in its environment."""

import re

import pytest

from proxy import harnesses
from proxy.harnesses import MODEL_HOSTS, Route, arguments, detect, environment, pattern, profile

URL = "http://127.0.0.1:4100"


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("claude -p hi", "claude-code"),
        ("/opt/node/bin/claude --continue", "claude-code"),
        ("npx -y @anthropic-ai/claude-code@2.1.332 -p hi", "claude-code"),
        ("node /srv/node_modules/@anthropic-ai/claude-code/cli.js", "claude-code"),
        ("env FOO=1 opencode run hi", "opencode"),
        ("npx opencode-ai@1.18.33 run hi", "opencode"),
        ("codex.exe exec hi", "codex"),
        ("qwen -p hi", "qwen-code"),
        ("gemini -p hi", "gemini-cli"),
        ("python agent.py claude", "generic"),
        ("my-agent --model gpt", "generic"),
    ],
)
def test_a_command_names_its_harness(command: str, name: str) -> None:
    assert detect(command.split()).name == name


def test_an_unknown_harness_is_refused_with_the_choices() -> None:
    with pytest.raises(ValueError, match=r"expected one of claude-code, opencode, .*, generic, got 'cursor'"):
        profile("cursor")


def opened(host_and_port: str) -> bool:
    return any(re.search(pattern(h), host_and_port) for h in MODEL_HOSTS)


@pytest.mark.parametrize(
    ("host", "is_opened"),
    [
        ("api.anthropic.com:443", True),
        ("us-east5-aiplatform.googleapis.com:443", True),
        ("bedrock-runtime.eu-west-1.amazonaws.com:443", True),
        ("acme.openai.azure.com:443", True),
        ("statsig.anthropic.com:443", False),
        ("api.anthropic.com.evil.example:443", False),
        ("notapi.openai.com:443", False),
        ("github.com:443", False),
    ],
)
def test_only_model_hosts_are_opened(host: str, is_opened: bool) -> None:
    assert opened(host) is is_opened


def variables(name: str, route: Route, **environ: str) -> dict[str, str]:
    return environment(
        profile(name), route=route, url=URL, certificate="/h/ca.pem", bundle="/h/all.pem", environ=environ
    )


def test_the_proxy_route_of_claude_code() -> None:
    assert variables("claude-code", "proxy") == {
        "HTTPS_PROXY": URL,
        "https_proxy": URL,
        "NO_PROXY": "127.0.0.1,localhost,::1",
        "no_proxy": "127.0.0.1,localhost,::1",
        "NODE_EXTRA_CA_CERTS": "/h/ca.pem",
        "NODE_USE_ENV_PROXY": "1",
        "SSL_CERT_FILE": "/h/all.pem",
        "REQUESTS_CA_BUNDLE": "/h/all.pem",
        "CURL_CA_BUNDLE": "/h/all.pem",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
        "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }


def test_the_base_url_route_sets_no_proxy_and_no_certificates() -> None:
    assert variables("opencode", "base-url") == {
        "ANTHROPIC_BASE_URL": URL + "/v1",
        "OPENAI_BASE_URL": URL + "/v1",
        "NO_PROXY": "127.0.0.1,localhost,::1",
        "no_proxy": "127.0.0.1,localhost,::1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    }


def test_the_users_own_base_url_lends_its_path() -> None:
    assert variables("claude-code", "base-url", ANTHROPIC_BASE_URL="https://gate.example/anthropic/")[
        "ANTHROPIC_BASE_URL"
    ] == (URL + "/anthropic")


def test_a_flag_that_the_user_set_stays() -> None:
    assert "DISABLE_TELEMETRY" not in variables("claude-code", "proxy", DISABLE_TELEMETRY="0")


def test_the_users_exceptions_stay_unless_a_model_host_would_slip_through() -> None:
    assert variables("claude-code", "proxy", NO_PROXY="intranet.example, .anthropic.com,*")["NO_PROXY"] == (
        "intranet.example,127.0.0.1,localhost,::1"
    )


def test_a_host_of_the_users_own_base_url_is_a_model_host() -> None:
    environ = {"ANTHROPIC_BASE_URL": "https://gate.example:8443/anthropic"}

    assert harnesses.named_hosts(profile("claude-code"), environ) == ("gate.example",)
    assert harnesses.named_hosts(profile("claude-code"), {}) == ()


def test_codex_is_told_its_address_in_arguments() -> None:
    assert arguments(profile("codex"), route="proxy", url=URL) == ()
    assert arguments(profile("codex"), route="base-url", url=URL) == (
        "-c",
        'model_provider="memorywalker"',
        "-c",
        'model_providers.memorywalker={name="memorywalker",base_url="http://127.0.0.1:4100/v1",wire_api="responses",'
        'env_key="OPENAI_API_KEY"}',
    )
