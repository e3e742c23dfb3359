"""A call as a row: which facts stand in columns, which in its packs, and the digest over all of them."""

import json
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any

from sqlalchemy import Row, select

from recorder import idruns, recipe, schema
from recorder.call import Call, Outcome
from recorder.glue import glue, unglue
from recorder.headers import clean_url, kept
from recorder.outcome import Asked
from recorder.recipe import get_varint, put_varint
from recorder.segments import digest

CALLS = (
    select(schema.call, schema.run.c.key.label("run_key"), schema.session.c.key.label("session_key"))
    .join_from(schema.call, schema.run)
    .join(schema.session)
)
ASKED = (
    select(
        *(schema.call.c[n] for n in ("seq", "request_digest", "node", "model", "outcome")),
        schema.run.c.key.label("run_key"),
        schema.session.c.key.label("session_key"),
    )
    .join_from(schema.call, schema.run)
    .join(schema.session)
    .order_by(schema.call.c.seq)
)
RESPONSE_COLUMNS = ("status", "outcome", "first_byte_s", "duration_s", "response_length", "response_digest")
OPEN: dict[str, object] = {**dict.fromkeys(RESPONSE_COLUMNS), "outcome": Outcome.UNANSWERED.value}
"""What a call says of its response before there is one."""

_DIGESTED = (
    *("run_key", "session_key", "once", "model", "status", "outcome", "started_at_utc", "first_byte_s", "duration_s"),
    *("request_length", "request_digest", "response_length", "response_digest", "head", "node"),
)


def asked(row: Row[Any]) -> Asked:
    """What a row of `ASKED` says."""
    node = None if row.node is None else bytes(row.node)
    return Asked(
        row.seq, row.run_key, row.session_key, bytes(row.request_digest), node, row.model, Outcome(row.outcome)
    )


def request_meta(call: Call) -> bytes:
    return _json([call.method, clean_url(call.url), kept(call.request_headers), call.source])


def response_meta(call: Call) -> bytes:
    return _json([kept(call.response_headers), call.error])


def response_columns(call: Call) -> dict[str, object]:
    return {
        "status": call.status,
        "outcome": call.outcome.value,
        "first_byte_s": call.first_byte_s,
        "duration_s": call.duration_s,
        "response_length": len(call.response_body),
        "response_digest": digest(call.response_body),
    }


def row_digest(values: Mapping[str, object], request: bytes, response: bytes) -> bytes:
    """16 bytes over the facts of a call, whichever way they are stored; `response` is empty while the call is open."""
    h = blake2b(b"call\0", digest_size=16)
    for name in _DIGESTED:
        value = values[name]
        data = bytes(value) if isinstance(value, bytes | memoryview) else repr(value).encode()
        h.update(len(data).to_bytes(8, "little") + data)
    for data in (request, response):
        h.update(len(data).to_bytes(8, "little") + data)
    return h.digest()


def join(meta: bytes, content: bytes) -> bytes:
    """Content of a pack: the length of the meta part, the meta part, the rest."""
    out = bytearray()
    put_varint(out, len(meta))
    return bytes(out) + meta + content


def part(content: bytes) -> tuple[bytes, int]:
    """The meta part of a pack and where the rest begins; ValueError when it is cut short."""
    size, at = get_varint(content, 0)
    if at + size > len(content):
        raise ValueError(f"pack: expected {size} bytes of facts, got {len(content) - at}")
    return content[at : at + size], at + size


def join_response(call: Call, run: tuple[int, int, list[int]] | None = None) -> bytes:
    """`run`: where a run of ids begins, how long it is, and the segments that hold it; None = there is none."""
    body = call.response_body
    if run is None:
        return join(response_meta(call), glue(body))
    at, size, ids = run
    return join(response_meta(call), idruns.put(at, recipe.encode(ids), glue(body[:at] + body[at + size :])))


def response_body(content: bytes, pieces: Callable[[list[int]], list[bytes]]) -> bytes:
    """`pieces`: segments by their ids."""
    data = content[part(content)[1] :]
    told = idruns.get(data)
    if told is None:
        return unglue(data)
    at, ids, rest = told
    body = unglue(rest)
    return b"".join((body[:at], *pieces(recipe.decode(ids)), body[at:]))


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def key(text: str) -> str:
    """Text that every database can hold and index."""
    return text.encode("utf-8", "replace").decode().replace("\0", "")[:512]
