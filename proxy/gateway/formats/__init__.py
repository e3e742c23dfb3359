"""Pieces of a reply as bytes, one module for each wire format. An encoder serves one reply."""

import json
from collections.abc import Iterator
from typing import Protocol

from proxy.gateway.completion import Completion, Fault, Piece, Refusal

Json = dict[str, object]


class Encoder(Protocol):
    def frames(self, piece: Piece) -> Iterator[bytes]:
        """Events of the stream that this piece makes."""

    def end(self) -> Iterator[bytes]:
        """What follows the last piece of a reply that reached its Stop."""

    def body(self, completion: Completion) -> Json:
        """The reply to a request that asked for no stream."""


def dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def event(name: str, data: Json) -> bytes:
    return f"event: {name}\ndata: {dumps(data)}\n\n".encode("utf-8", "surrogatepass")


def error_body(wire: str, error: Refusal | Fault, *, request_id: str) -> Json:
    if wire == "anthropic":
        inner = {"type": error.type, "message": error.message}
        return {"type": "error", "error": inner, "request_id": request_id}
    return {"error": {"message": error.message, "type": error.type, "param": None, "code": None}}
