"""Where a request goes and under which URL it is recorded. Scheme, host, port and path prefix may change; bodies never.

`Host` keeps what the client sent when the new address is an IP or localhost, which cannot tell virtual hosts apart; a
named server gets its own name, as it would from a client that had dialled it.
"""

import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from mitmproxy.http import HTTPFlow, Request
from mitmproxy.proxy.mode_specs import ReverseMode

from proxy.chain import Chain
from proxy.harnesses import Family
from recorder.errors import LaunchError

Classify = Callable[[str, str], str]
"""Method and URL to the wire's name, or nothing: `recorder.wire.classify`."""

DEFAULT_PORT = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Origin:
    scheme: str
    host: str
    port: int
    path: str = ""
    """Put before the request's own path; no slash at the end."""

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORT[self.scheme] else f"{host}:{self.port}"

    @property
    def root(self) -> str:
        """Without the path."""
        return f"{self.scheme}://{self.authority}"

    @property
    def is_named(self) -> bool:
        """Whether the server may tell virtual hosts apart by name."""
        try:
            ipaddress.ip_address(self.host)
        except ValueError:
            return self.host != "localhost"
        return False


def origin(url: str, *, where: str) -> Origin:
    """Parse the address of a server. Raises LaunchError."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in DEFAULT_PORT or not parts.hostname:
        raise LaunchError(f"expected http://HOST[:PORT] or https://HOST[:PORT], got {url!r}, at {where}")
    return Origin(parts.scheme, parts.hostname, port or DEFAULT_PORT[parts.scheme], parts.path.rstrip("/"))


class Routes:
    """Both routes' redirections. Called once a request, on the loop, when its head has arrived."""

    def __init__(
        self,
        *,
        classify: Classify,
        is_model_host: Callable[[str, int], bool],
        upstream: Origin | None = None,
        origins: Mapping[Family, Origin] | None = None,
        default: Family = "anthropic",
        chain: Chain | None = None,
    ) -> None:
        """`origins` serve the base-URL route by family; `upstream` replaces them and the proxy route's model hosts.
        `chain` is the proxy behind ours."""
        self._classify = classify
        self._is_model_host = is_model_host
        self._upstream = upstream
        self._origins = origins or {}
        self._default = default
        self._chain = chain

    def __call__(self, flow: HTTPFlow) -> str:
        """Redirect where needed; the URL to record, or nothing when the call is no model call."""
        request = flow.request
        if isinstance(flow.client_conn.proxy_mode, ReverseMode):
            target = self._upstream or self._origins[self._family(request)]
            _redirect(request, target, rename=True)
            url = _url(request)
        else:
            url = _url(request)
            if not self._is_model_host(request.host, request.port):
                return ""
            if self._upstream:
                _redirect(request, self._upstream, rename=self._upstream.is_named)
        if self._chain and flow.server_conn.via != (via := self._chain.via(request.host)):
            flow.server_conn.via = via
        if request.method == "GET" and request.headers.get("upgrade", "").lower() != "websocket":
            return ""
        return url if self._classify(request.method, url) else ""

    def _family(self, request: Request) -> Family:
        wire = self._classify("POST", "http://localhost" + request.path)
        if wire.startswith("openai"):
            return "openai"
        if wire.startswith("gemini") or request.path.startswith("/v1beta/"):
            return "gemini"
        if wire == "anthropic" or "anthropic-version" in request.headers:
            return "anthropic"
        return self._default


def _redirect(request: Request, target: Origin, *, rename: bool) -> None:
    request.data.scheme = target.scheme.encode()
    request.data.host = target.host  # not request.host, whose setter rewrites the Host header
    request.data.port = target.port
    if target.path:
        request.path = target.path + request.path
    if rename:
        request.host_header = target.authority


def _url(request: Request) -> str:
    shown = Origin(request.scheme, request.host, request.port)
    return shown.root + request.path
