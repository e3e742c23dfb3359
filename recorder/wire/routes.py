"""Which addresses are model calls, told by the end of the path: routes, gateways and clouds put anything before it."""

import re
from dataclasses import dataclass
from urllib.parse import unquote

from recorder.message import CallKind


@dataclass(frozen=True, slots=True)
class Route:
    wire: str
    """Empty = not a model call."""
    kind: CallKind = "generate"
    model: str = ""
    """The model or deployment named in the path; empty = the body names it."""


NONE = Route("")

_PATHS: tuple[tuple[re.Pattern[str], Route], ...] = (
    (re.compile(r"/messages/count_tokens$"), Route("anthropic", "count_tokens")),
    (re.compile(r"(?<!/threads)(?:^|/)messages$"), Route("anthropic")),
    (re.compile(r"/publishers/anthropic/models/count-tokens:rawPredict$"), Route("anthropic", "count_tokens")),
    (
        re.compile(r"/publishers/anthropic/models/(?P<model>[^/:]+):(?:rawPredict|streamRawPredict)$"),
        Route("anthropic"),
    ),
    (re.compile(r"/deployments/(?P<model>[^/]+)/chat/completions$"), Route("openai_chat")),
    (re.compile(r"/chat/completions$"), Route("openai_chat")),
    (re.compile(r"/responses(?:/compact)?$"), Route("openai_responses")),
    (re.compile(r"/responses/input_tokens$"), Route("openai_responses", "count_tokens")),
    (re.compile(r"/(?P<model>[^/:]+):(?:g|streamG)enerateContent$"), Route("gemini")),
    (re.compile(r"/(?P<model>[^/:]+):countTokens$"), Route("gemini", "count_tokens")),
    (
        re.compile(r"/model/(?P<model>.+)/(?:invoke|invoke-with-response-stream|converse|converse-stream)$"),
        Route("bedrock"),
    ),
)
_THREAD = re.compile(r"/(?:threads|channels|conversations|rooms|batches)(?:/[^/]+)*/messages$")


def route(method: str, url: str) -> Route:
    """GET counts only for Responses: it is the websocket handshake, a model call when the answer is 101."""
    path = unquote(re.split("[?#]", url, maxsplit=1)[0]).rstrip("/")
    if _THREAD.search(path):  # OpenAI's assistants, chat services: messages of another kind
        return NONE
    for pattern, found in _PATHS:
        if match := pattern.search(path):
            if method.upper() != "POST" and not (method.upper() == "GET" and path.endswith("/responses")):
                return NONE
            named = match.groupdict().get("model") or ""
            return Route(found.wire, found.kind, "" if named == "v1internal" else named)  # Gemini CLI's own endpoint
    return NONE
