"""The HTTP side: paths to wire formats, an engine's answer to a stream or a body, and what the real servers add."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Send

from proxy.gateway.completion import Answer, Fault, Pace, Refusal, Stop, collect
from proxy.gateway.engines import Engine
from proxy.gateway.formats import Encoder, Json, dumps, error_body
from proxy.gateway.formats.anthropic import AnthropicEncoder
from proxy.gateway.formats.openai_chat import ChatEncoder
from proxy.gateway.formats.openai_responses import ResponsesEncoder
from proxy.gateway.ids import fresh
from proxy.gateway.request import Request, parse
from recorder.errors import WireError

_CREATED = 1767225600
"""Creation time of every listed model, 2026-01-01."""


@dataclass(slots=True)
class Counts:
    """What was asked and how it went, in requests."""

    requests: int = 0
    """Replies asked for; token counts and lists of models are not."""
    refused: int = 0
    """Of these, answered by an HTTP error."""
    cut: int = 0
    """Of these, dropped on the way by the script."""
    left: int = 0
    """Of these, dropped on the way by the client."""


class _Stream(StreamingResponse):
    """A stream that ends without its closing chunk when it is to be cut."""

    def __init__(self, frames: AsyncIterator[bytes], headers: dict[str, str], counts: Counts, *, cut: bool) -> None:
        super().__init__(frames, 200, headers)
        self._counts = counts
        self._cut = cut

    async def stream_response(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async for chunk in self.body_iterator:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except asyncio.CancelledError:
            self._counts.left += 1
            raise
        if self._cut:
            self._counts.cut += 1
        else:
            await send({"type": "http.response.body", "body": b"", "more_body": False})


class Handlers:
    def __init__(self, engine: Engine) -> None:
        self.counts = Counts()
        self._engine = engine

    async def messages(self, http: HttpRequest) -> Response:
        return await self._reply("anthropic", http)

    async def chat(self, http: HttpRequest) -> Response:
        return await self._reply("openai_chat", http)

    async def responses(self, http: HttpRequest) -> Response:
        return await self._reply("openai_responses", http)

    async def count_tokens(self, http: HttpRequest) -> Response:
        return await self._count("anthropic", http, {})

    async def input_tokens(self, http: HttpRequest) -> Response:
        return await self._count("openai_responses", http, {"object": "response.input_tokens"})

    async def models(self, http: HttpRequest) -> Response:
        names = self._engine.models
        if "anthropic-version" not in http.headers:
            listed: list[Json] = [
                {"id": n, "object": "model", "created": _CREATED, "owned_by": "memorywalker"} for n in names
            ]
            return _json("openai", {"object": "list", "data": listed})
        listed = [{"type": "model", "id": n, "display_name": n, "created_at": "2026-01-01T00:00:00Z"} for n in names]
        page = {"data": listed, "has_more": False, "first_id": names[0], "last_id": names[-1]}
        return _json("anthropic", page)

    async def no_websocket(self, http: HttpRequest) -> Response:
        """A client that would rather speak over a websocket falls back to POST."""
        refusal = Refusal(426, "upgrade_required", "expected a POST, got a websocket upgrade")
        return _error("openai", refusal, upgrade="HTTP/1.1")

    async def not_found(self, http: HttpRequest) -> Response:
        refusal = Refusal(404, "not_found_error", f"no {http.method} {http.url.path} here")
        return _error("anthropic", refusal)

    async def _count(self, wire: str, http: HttpRequest, top: Json) -> Response:
        request = await _read(wire, http)
        if isinstance(request, Refusal):
            return _error(wire, request)
        return _json(wire, {**top, "input_tokens": self._engine.count_tokens(request)})

    async def _reply(self, wire: str, http: HttpRequest) -> Response:
        self.counts.requests += 1
        request = await _read(wire, http)
        answer = request if isinstance(request, Refusal) else await self._engine.answer(request)
        if isinstance(answer, Refusal):
            self.counts.refused += 1
            await asyncio.sleep(answer.first_delay_s)
            return _error(wire, answer)
        assert isinstance(request, Request)
        await asyncio.sleep(answer.pace.first_delay_s)
        encoder = _encoder(request)
        if not request.stream:
            return await self._whole(request, encoder, answer)
        headers = {
            "content-type": "text/event-stream; charset=utf-8",
            "cache-control": "no-cache",
            **_headers(wire, fresh("req_011")),
        }
        cut = answer.pace.cut_after is not None
        return _Stream(_paced(_frames(encoder, answer), answer.pace), headers, self.counts, cut=cut)

    async def _whole(self, request: Request, encoder: Encoder, answer: Answer) -> Response:
        completion = await collect(answer.pieces)
        if isinstance(completion, Fault):
            self.counts.refused += 1
            return _error(request.wire, Refusal(500, completion.type, completion.message))
        body = dumps(encoder.body(completion)).encode("utf-8", "surrogatepass")
        headers = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            **_headers(request.wire, fresh("req_011")),
        }
        if answer.pace.cut_after is None:
            return Response(body, 200, headers)

        async def half() -> AsyncIterator[bytes]:
            yield body[: len(body) // 2]

        return _Stream(half(), headers, self.counts, cut=True)


def make_app(handlers: Handlers) -> Starlette:
    routes = []
    for root in ("/v1", ""):  # base URLs are written with and without /v1
        routes += [
            Route(f"{root}/messages", handlers.messages, methods=["POST"]),
            Route(f"{root}/messages/count_tokens", handlers.count_tokens, methods=["POST"]),
            Route(f"{root}/chat/completions", handlers.chat, methods=["POST"]),
            Route(f"{root}/responses", handlers.responses, methods=["POST"]),
            Route(f"{root}/responses", handlers.no_websocket, methods=["GET"]),
            Route(f"{root}/responses/input_tokens", handlers.input_tokens, methods=["POST"]),
            Route(f"{root}/models", handlers.models, methods=["GET"]),
        ]
    every = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
    return Starlette(routes=[*routes, Route("/{path:path}", handlers.not_found, methods=every)])


async def _read(wire: str, http: HttpRequest) -> Request | Refusal:
    try:
        return parse(wire, tuple(http.headers.items()), await http.body())
    except WireError as e:
        return Refusal(400, "invalid_request_error", str(e))


def _encoder(request: Request) -> Encoder:
    model, created = request.head.model, int(time.time())
    match request.wire:
        case "anthropic":
            return AnthropicEncoder(reply_id=request.reply_id, model=model)
        case "openai_chat":
            return ChatEncoder(
                reply_id=request.reply_id, model=model, created=created, include_usage=request.include_usage
            )
        case _:
            return ResponsesEncoder(reply_id=request.reply_id, model=model, created=created)


async def _frames(encoder: Encoder, answer: Answer) -> AsyncIterator[bytes]:
    async for piece in answer.pieces:
        for frame in encoder.frames(piece):
            yield frame
        if isinstance(piece, Stop):
            for frame in encoder.end():
                yield frame


async def _paced(frames: AsyncIterator[bytes], pace: Pace) -> AsyncIterator[bytes]:
    sent = 0
    async for frame in frames:
        if sent == pace.cut_after:
            return
        if sent and pace.delay_s:
            await asyncio.sleep(pace.delay_s)
        yield frame
        sent += 1


def _headers(wire: str, request_id: str) -> dict[str, str]:
    if wire == "anthropic":
        return {"request-id": request_id, "anthropic-organization-id": "00000000-0000-4000-8000-000000000000"}
    return {"x-request-id": request_id, "openai-version": "2020-10-01", "openai-processing-ms": "1"}


def _json(wire: str, value: Json) -> Response:
    return Response(dumps(value).encode(), 200, _headers(wire, fresh("req_011")), "application/json")


def _error(wire: str, refusal: Refusal, **extra: str) -> Response:
    request_id = fresh("req_011")
    headers = {**_headers(wire, request_id), **extra}
    if refusal.retry_after_s is not None:
        headers["retry-after"] = f"{refusal.retry_after_s:g}"
    body = dumps(error_body(wire, refusal, request_id=request_id)).encode()
    return Response(body, refusal.status, headers, "application/json")
