"""The proxy that the user's network asks for goes behind ours: an HTTPS_PROXY set already is still gone through.

agent -> ours -> HTTPS_PROXY -> model        NO_PROXY and loopback: ours -> model
"""

import re
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import unquote, urlsplit
from urllib.request import proxy_bypass_environment  # type: ignore[attr-defined,unused-ignore]

from mitmproxy.http import HTTPFlow
from mitmproxy.net.server_spec import ServerSpec

from proxy.server import is_loopback
from recorder.errors import LaunchError

VARIABLES = ("https_proxy", "HTTPS_PROXY")
"""The first that is set counts, as for curl and Python."""
DEFAULT_PORT = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Chain:
    spec: ServerSpec
    login: str = ""
    """USER:PASSWORD, told to that proxy alone; empty = none."""
    bypass: str = ""
    """The user's NO_PROXY."""

    @property
    def mode(self) -> str:
        """mitmproxy's own word for a proxy that is behind another."""
        scheme, (host, port) = self.spec
        return f"upstream:{scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    def via(self, host: str) -> ServerSpec | None:
        """How to get to a host; None = directly."""
        return None if is_loopback(host) or proxy_bypass_environment(host, {"no": self.bypass}) else self.spec

    def http_connect_upstream(self, flow: HTTPFlow) -> None:
        """mitmproxy's hook: the request to that proxy."""
        if self.login:
            flow.request.headers["proxy-authorization"] = "Basic " + b64encode(self.login.encode()).decode()


def chain(environ: Mapping[str, str]) -> Chain | None:
    """The proxy that the environment names; None = none. Raises LaunchError."""
    name = next((name for name in VARIABLES if environ.get(name)), "")
    if not name:
        return None
    value = environ[name]
    try:
        parts = urlsplit(value if "://" in value else f"http://{value}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or parts.scheme not in DEFAULT_PORT:
        shown = re.sub(r"[^/]*@", "", value)
        raise LaunchError(f"expected http://HOST:PORT or https://HOST:PORT, got {shown}, at {name}")
    login = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}" if "@" in parts.netloc else ""
    bypass = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
    return Chain((_scheme(parts.scheme), (host, port or DEFAULT_PORT[parts.scheme])), login, bypass)


def _scheme(text: str) -> Literal["http", "https"]:
    return "https" if text == "https" else "http"
