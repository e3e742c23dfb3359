"""A body is a recipe over shared segments, cut where JSON elements begin and end, so that a longer history re-uses the shorter.

Borders are a hint and never change a byte: joining the segments of any body, JSON or not, gives the body.

    {"model":"m","messages":[ | {"role":"user","content":[ | "a long string" | ]} | ,{"role":... | ],"tools":[ | ...

A recipe is a list of segment ids told as runs over the recipe of an earlier body: `copy n from p` or `n new ids from i`.
"""

import re
from collections.abc import Iterator, Sequence
from hashlib import blake2b

ELEMENT_DEPTHS = (2, 4)
"""Nesting of the arrays whose elements are cut: `messages`, `tools`, `system`, `input` (2) and a message's `content` (4)."""
MIN_BLOCK_BYTES = 256
"""A content block smaller than this stays with its neighbour: a row and an id cost about 60 bytes. Ours."""
MIN_STRING_BYTES = 512
"""A string this long is a segment of its own: `cache_control` and key order change around it. Ours."""

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_BRACKET = re.compile(rb'(?:[^"\[\]{}]++|"[^"\\]*+(?:\\.[^"\\]*+)*+")*+([\[\]{}])', re.DOTALL)
_OPENING, _ARRAY = b"[{", b"["


def digest(data: bytes) -> bytes:
    """Content address of a segment or body: 16 bytes of BLAKE2b."""
    return blake2b(data, digest_size=16).digest()


def borders(body: bytes, start: int = 0) -> Iterator[int]:
    """Offsets at which `body` is cut, rising, 0 and the end left out. Linear in the body, whatever its bytes."""
    if body[:1] not in (b"{", b"["):
        return
    containers = bytearray()
    position = cut = 0
    while found := _BRACKET.match(body, position):
        end = found.end()
        bracket = body[end - 1 : end]
        if end - position > MIN_STRING_BYTES:
            for border in _long_strings(body, position, end):
                if border > cut:
                    yield (cut := border)
        position = end
        if bracket in _OPENING:
            depth = len(containers)
            if depth in ELEMENT_DEPTHS and containers[-1:] == _ARRAY and depth == 2 and end - 1 > cut:
                yield (cut := end - 1)
            containers += bracket
        else:
            if not containers:
                return
            containers.pop()
            depth = len(containers)
            if (
                depth in ELEMENT_DEPTHS
                and containers[-1:] == _ARRAY
                and (depth == 2 or end - cut >= MIN_BLOCK_BYTES)
                and cut < end < len(body)
            ):
                yield (cut := end)


def _long_strings(body: bytes, start: int, end: int) -> Iterator[int]:
    for found in _STRING.finditer(body, start, end):
        first, last = found.span()
        if last - first >= MIN_STRING_BYTES:
            yield first
            yield last


def split(body: bytes) -> list[bytes]:
    """The segments of a body; `b"".join(split(body)) == body`, and no segment is empty."""
    offsets = [0, *borders(body), len(body)]
    return [body[a:b] for a, b in zip(offsets, offsets[1:], strict=False) if a < b]


def encode_recipe(ids: Sequence[int], base: Sequence[int] = ()) -> bytes:
    """Runs as varints: (length << 1 | copied), then the zigzag distance to where the last run of its sort ended."""
    where = {segment: place for place, segment in enumerate(base)}
    out = bytearray()
    next_place = next_id = at = 0
    while at < len(ids):
        first = ids[at]
        place = where.get(first)
        length = 1
        if place is None:
            while at + length < len(ids) and ids[at + length] == first + length and ids[at + length] not in where:
                length += 1
            _varint(out, length << 1)
            _varint(out, _zigzag(first - next_id))
            next_id = first + length
        else:
            while at + length < len(ids) and place + length < len(base) and ids[at + length] == base[place + length]:
                length += 1
            _varint(out, length << 1 | 1)
            _varint(out, _zigzag(place - next_place))
            next_place = place + length
        at += length
    return bytes(out)


def decode_recipe(recipe: bytes, base: Sequence[int] = ()) -> list[int]:
    """Inverse of `encode_recipe`; ValueError when the recipe is cut or points outside its base."""
    ids: list[int] = []
    next_place = next_id = at = 0
    while at < len(recipe):
        run, at = _read_varint(recipe, at)
        step, at = _read_varint(recipe, at)
        distance = step >> 1 if not step & 1 else -(step >> 1) - 1
        length = run >> 1
        if run & 1:
            place = next_place + distance
            next_place = place + length
            if place < 0 or next_place > len(base):
                raise ValueError(f"recipe: expected places below {len(base)}, got {place}..{next_place} at byte {at}")
            ids += base[place:next_place]
        else:
            first = next_id + distance
            next_id = first + length
            if length > MAX_RUN:
                raise ValueError(f"recipe: expected a run of at most {MAX_RUN} segments, got {length} at byte {at}")
            ids += range(first, next_id)
    return ids


MAX_RUN = 1 << 24
"""A damaged recipe must not ask for the memory of the machine."""


def _zigzag(number: int) -> int:
    return number << 1 if number >= 0 else (-number << 1) - 1


def _varint(out: bytearray, number: int) -> None:
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if at >= len(data):
            raise ValueError(f"recipe: expected more bytes, got the end at {at}")
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
