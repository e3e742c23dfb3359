"""What each agent CLI needs to be recorded: the environment of both routes, quiet flags, the hosts it talks to.

Facts come from WIRE.md section 1, seen live with the real CLIs. A profile is data; the functions below read it.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal
from urllib.parse import urlsplit

Route = Literal["proxy", "base-url"]
"""proxy = the agent is told of an HTTPS proxy and trusts our authority. base-url = it is told that we are the model."""

Family = Literal["anthropic", "openai", "gemini"]

ORIGINS: Mapping[Family, str] = {
    "anthropic": "https://api.anthropic.com",
    "openai": "https://api.openai.com",
    "gemini": "https://generativelanguage.googleapis.com",
}
"""Where the base-URL route sends a family's requests when neither the user nor --upstream says."""

MODEL_HOSTS = (
    "api.anthropic.com",
    "api.openai.com",
    "chatgpt.com",
    "generativelanguage.googleapis.com",
    "cloudcode-pa.googleapis.com",
    "aiplatform.googleapis.com",
    "*-aiplatform.googleapis.com",
    "bedrock-runtime.*.amazonaws.com",
    "*.openai.azure.com",
    "*.services.ai.azure.com",
    "api.githubcopilot.com",
    "api.cerebras.ai",
    "api.deepseek.com",
    "api.fireworks.ai",
    "api.groq.com",
    "api.mistral.ai",
    "api.moonshot.ai",
    "api.moonshot.cn",
    "api.together.xyz",
    "api.x.ai",
    "api.z.ai",
    "dashscope.aliyuncs.com",
    "dashscope-intl.aliyuncs.com",
    "open.bigmodel.cn",
    "opencode.ai",
    "openrouter.ai",
    "portal.qwen.ai",
    "router.huggingface.co",
)
"""Hosts whose TLS is opened; all else is tunnelled untouched. `*` stands for one or more characters but no dot."""


@dataclass(frozen=True, slots=True)
class BaseUrl:
    """A variable through which a harness takes the address of its model."""

    variable: str
    family: Family
    suffix: str
    """Path that the harness expects to be part of the value: `/v1`, or nothing."""


@dataclass(frozen=True, slots=True)
class Profile:
    name: str
    commands: tuple[str, ...]
    """Names of the executable, and of the npm or PyPI packages that run it."""
    base_urls: tuple[BaseUrl, ...]
    quiet: tuple[tuple[str, str], ...] = ()
    """Variables that stop telemetry and updates; never set over the user's own."""
    arguments: tuple[str, ...] = ()
    """Base-URL route only, put after the command's name; `{base}` is our address."""


ANTHROPIC = BaseUrl("ANTHROPIC_BASE_URL", "anthropic", "")
OPENAI = BaseUrl("OPENAI_BASE_URL", "openai", "/v1")
GEMINI = BaseUrl("GOOGLE_GEMINI_BASE_URL", "gemini", "")

GENERIC = Profile(
    "generic",
    (),
    (ANTHROPIC, OPENAI, BaseUrl("OPENAI_API_BASE", "openai", "/v1"), GEMINI),
)

PROFILES = (
    Profile(
        "claude-code",
        ("claude", "@anthropic-ai/claude-code", "claude-code"),
        (ANTHROPIC,),
        quiet=(
            ("DISABLE_TELEMETRY", "1"),
            ("DISABLE_ERROR_REPORTING", "1"),
            ("DISABLE_AUTOUPDATER", "1"),
            ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
        ),
    ),
    Profile(
        "opencode",
        ("opencode", "opencode-ai"),
        (BaseUrl("ANTHROPIC_BASE_URL", "anthropic", "/v1"), OPENAI),
        quiet=(
            ("OPENCODE_DISABLE_MODELS_FETCH", "1"),
            ("OPENCODE_DISABLE_AUTOUPDATE", "1"),
            ("OPENCODE_DISABLE_LSP_DOWNLOAD", "1"),
        ),
    ),
    Profile(
        "codex",
        ("codex", "@openai/codex"),
        (OPENAI,),
        arguments=(
            "-c",
            'model_provider="memorywalker"',
            "-c",
            'model_providers.memorywalker={{name="memorywalker",base_url="{base}/v1",wire_api="responses",'
            'env_key="OPENAI_API_KEY"}}',
        ),
    ),
    Profile("qwen-code", ("qwen", "@qwen-code/qwen-code", "qwen-code"), (OPENAI,)),
    Profile("qwen-agent", ("qwen-agent", "qwen_agent"), (OPENAI, BaseUrl("OPENAI_API_BASE", "openai", "/v1"))),
    Profile("gemini-cli", ("gemini", "@google/gemini-cli", "gemini-cli"), (GEMINI,)),
    GENERIC,
)

EXECUTABLE = (".exe", ".cmd", ".js", ".mjs", ".py")
LAUNCHERS = ("env", "npx", "bunx", "pnpm", "dlx", "node", "bun", "uvx", "uv", "run", "exec", "nice", "time", "timeout")
"""Words that stand before the agent's own name."""


def names() -> tuple[str, ...]:
    return tuple(p.name for p in PROFILES)


def profile(name: str) -> Profile:
    """The profile of that name. Raises ValueError."""
    for p in PROFILES:
        if p.name == name:
            return p
    raise ValueError(f"expected one of {', '.join(names())}, got {name!r}, at --harness")


def detect(command: Iterable[str]) -> Profile:
    """The profile whose command is run, seen through `env X=1`, `npx PACKAGE@VERSION` and `node .../PACKAGE/cli.js`."""
    for word in command:
        path = PurePath(word.replace("\\", "/"))
        stem = path.name.split("@")[0].removesuffix(path.suffix if path.suffix in EXECUTABLE else "")
        for p in PROFILES:
            if any(stem == c or ("/" in c and c in word) for c in p.commands):
                return p
        if not (word.startswith("-") or "=" in word or word.isdecimal() or stem in LAUNCHERS):
            break
    return GENERIC


def pattern(host: str) -> str:
    """Regular expression for mitmproxy's `allow_hosts`, which is matched against `host:port`."""
    port = r":\d+" if ":" not in host else ""
    return "^" + re.escape(host).replace(r"\*", r"[^.:]+") + port + "$"


def named_hosts(profile: Profile, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Hosts that the user's own base-URL variables name: model hosts as well, since the user said so."""
    urls = (urlsplit(environ.get(b.variable, "")) for b in profile.base_urls)
    return tuple(dict.fromkeys(u.hostname for u in urls if u.hostname))


def environment(
    profile: Profile, *, route: Route, url: str, certificate: str, bundle: str, environ: Mapping[str, str]
) -> dict[str, str]:
    """Variables to add to the agent's environment. What the user set stays, unless the route would be bypassed by it.

    `url` is our listener, `certificate` the PEM of our authority with the user's own extra roots, `bundle` all roots.
    """
    added = {name: value for name, value in profile.quiet if name not in environ}
    if route == "base-url":
        for b in profile.base_urls:
            own = urlsplit(environ.get(b.variable, ""))
            added[b.variable] = url + (own.path.rstrip("/") if own.hostname else b.suffix)
    else:
        added |= dict.fromkeys(("HTTPS_PROXY", "https_proxy"), url)
        added |= dict.fromkeys(("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"), bundle)
        added |= {"NODE_EXTRA_CA_CERTS": certificate, "NODE_USE_ENV_PROXY": "1"}
    added |= dict.fromkeys(("NO_PROXY", "no_proxy"), _no_proxy(environ, keep_hosts=route == "base-url"))
    return added


def _no_proxy(environ: Mapping[str, str], *, keep_hosts: bool) -> str:
    """Loopback and the user's exceptions, less those that would let a model host bypass us."""
    own = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
    entries = [e.strip() for e in own.split(",") if e.strip()]
    if not keep_hosts:
        entries = [e for e in entries if e != "*" and not any(h.endswith(e.lstrip("*.")) for h in MODEL_HOSTS)]
    return ",".join(dict.fromkeys((*entries, "127.0.0.1", "localhost", "::1")))


def arguments(profile: Profile, *, route: Route, url: str) -> tuple[str, ...]:
    """Words to put after the command's name."""
    return tuple(a.format(base=url) for a in profile.arguments) if route == "base-url" else ()
