"""A request as an engine sees it: canonical content, and the little that shapes the form of the answer."""

import json
from dataclasses import dataclass

from proxy.gateway.ids import fresh
from recorder.call import Call, Outcome
from recorder.encoding import Decoder
from recorder.errors import WireError
from recorder.message import Head, Hints, Message
from recorder.wire import Opaque, read

_PATHS = {
    "anthropic": "/v1/messages",
    "openai_chat": "/v1/chat/completions",
    "openai_responses": "/v1/responses",
}
_REPLY_IDS = {"anthropic": "msg_01", "openai_chat": "chatcmpl-", "openai_responses": "resp_"}


@dataclass(frozen=True)
class Request:
    wire: str
    """anthropic | openai_chat | openai_responses."""
    head: Head
    messages: tuple[Message, ...]
    hints: Hints
    stream: bool
    include_usage: bool
    """Chat completions: a last chunk with the usage was asked for."""
    reply_id: str
    """Fresh id of the reply to be given."""

    @property
    def system_text(self) -> str:
        """The head's system text and leading system messages."""
        texts = [b.text for b in self.head.system]
        for message in self.messages:
            if message.role != "system":
                break
            texts.append(message.plain)
        return "\n".join(texts)

    @property
    def size_chars(self) -> int:
        """Characters of everything the model sees."""
        head = sum(b.size_chars for b in self.head.system)
        tools = sum(len(t.name) + len(t.description) + len(t.schema) for t in self.head.tools)
        return head + tools + sum(m.size_chars for m in self.messages)

    def user_text(self, *, last: bool) -> str:
        """Text of the first or last user message, tool results aside; empty without one."""
        users = [m for m in self.messages if m.role == "user"]
        if not users:
            return ""
        return "\n".join(b.text for b in users[-1 if last else 0].blocks if b.kind == "text")


def parse(wire: str, headers: tuple[tuple[str, str], ...], body: bytes) -> Request:
    """Read a request's bytes; header names in lower case. WireError when they are not what the wire promises."""
    decoder = Decoder(dict(headers).get("content-encoding", ""))
    body = decoder.feed(body) + decoder.finish()
    if decoder.error:
        raise WireError(f"request: expected a body in its content-encoding, got {decoder.error}")
    call = Call(
        method="POST",
        url=f"http://gateway{_PATHS[wire]}",
        status=None,
        outcome=Outcome.UNANSWERED,
        request_headers=tuple((n, v) for n, v in headers if n != "content-encoding"),
        response_headers=(),
        request_body=body,
        response_body=b"",
        started_at_utc=0.0,
    )
    exchange = read(call)
    if isinstance(exchange, Opaque):
        raise WireError(exchange.reason)
    data = json.loads(body)
    options = data.get("stream_options")
    return Request(
        wire=wire,
        head=exchange.head,
        messages=exchange.messages,
        hints=exchange.hints,
        stream=data.get("stream") is True,
        include_usage=isinstance(options, dict) and options.get("include_usage") is True,
        reply_id=fresh(_REPLY_IDS[wire]),
    )
