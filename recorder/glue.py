"""A stream repeats the same bytes between its pieces of text; told once, they leave the text in one piece.

    event: delta\\ndata: {.."text":"Let me"}\\n\\nevent: delta\\ndata: {.."text":" look"}\\n\\nevent: delta\\n...
    glue: "}\\n\\nevent: delta\\ndata: {.."text":"    pieces: ..Let me look..    lengths: 6, 5

Exact for any bytes: `unglue(glue(body)) == body`. Text in one piece compresses well and matches the next request's.
"""

import re
from collections import Counter

from recorder.recipe import get_varint, put_varint, shared_start

MAX_GLUES = 6
MIN_SHARED_BYTES = 16
MAX_PAIRS = 40
"""Neighbouring events that are compared at most, evenly spread: enough to see each kind of event. Ours."""
_FREE = [bytes([b]) for b in (*range(1, 9), *range(14, 30))]
"""Stand-ins: bytes that neither JSON nor SSE may hold."""


def glue(body: bytes) -> bytes:
    """The body with its repeated glue taken out: glues, lengths of pieces, which glue follows each, pieces."""
    out = bytearray()
    text, used = body, []
    free = [f for f in _FREE if f not in body]
    for candidate, stand_in in zip(_candidates(body), free, strict=False):
        if text.count(candidate) >= 3:
            text = text.replace(candidate, stand_in)
            used.append((candidate, stand_in))
    put_varint(out, len(used))
    if not used:
        return bytes(out) + body
    pieces = re.split(b"([" + b"".join(s for _, s in used) + b"])", text)
    for candidate, _ in used:
        put_varint(out, len(candidate))
        out += candidate
    put_varint(out, len(pieces) // 2)
    for piece in pieces[::2]:
        put_varint(out, len(piece))
    if len(used) > 1:
        number = {stand_in: index for index, (_, stand_in) in enumerate(used)}
        out += bytes(number[p] for p in pieces[1::2])
    return bytes(out) + b"".join(pieces[::2])


def unglue(data: bytes) -> bytes:
    """Inverse of `glue`; ValueError when the data is damaged."""
    count, at = get_varint(data, 0)
    if not count:
        return data[at:]
    glues: list[bytes] = []
    for _ in range(count):
        size, at = get_varint(data, at)
        glues.append(data[at : at + size])
        at += size
    joints, at = get_varint(data, at)
    sizes: list[int] = []
    for _ in range(joints + 1):
        size, at = get_varint(data, at)
        sizes.append(size)
    kinds = data[at : at + joints] if count > 1 else bytes(joints)
    at += joints if count > 1 else 0
    if len(kinds) < joints or max(kinds, default=0) >= count or at + sum(sizes) != len(data):
        raise ValueError(f"glue: expected {joints} joints and {sum(sizes)} bytes of pieces, got {len(data) - at} bytes")
    parts = [data[at : at + sizes[0]]]
    at += sizes[0]
    for kind, size in zip(kinds, sizes[1:], strict=True):
        parts.append(glues[kind])
        parts.append(data[at : at + size])
        at += size
    return b"".join(parts)


def _candidates(body: bytes) -> list[bytes]:
    """What stands between the differing parts of neighbouring events, the most frequent first."""
    border = b"\n\x1e" if body[:1] == b"\x1e" else b"\r\n\r\n" if b"\r\n\r\n" in body else b"\n\n"
    events = body.split(border)
    found: Counter[bytes] = Counter()
    for index in range(0, len(events) - 1, max(1, len(events) // MAX_PAIRS)):
        first, second = events[index], events[index + 1]
        same = shared_start(first, second)
        head = second.rfind(b'"', 0, same) + 1  # not into the text: both may begin with a space
        if head < MIN_SHARED_BYTES or same == len(first):
            continue
        rest = shared_start(first[same:][::-1], second[same:][::-1])
        tail = first.find(b'"', len(first) - rest)
        found[(first[tail:] if tail >= 0 else b"") + border + second[:head]] += 1
    return [candidate for candidate, count in found.most_common(MAX_GLUES) if count > 2]
