"""Prompt ids that an engine serves with every reply: the run of numbers is cut out of the body and stored as segments.

    ...{"id":"c","prompt_token_ids":[ 1,2,...,7000, | 8,9,...,51000, | 3,4 ],"choices":...     3 segments, and the rest

A session of n calls serves each id up to n times; as segments, which all bodies share, it is stored once. Cuts follow
ids that end in 000: content decides where they are, so that an edit in the middle moves none behind it.
"""

import re

from recorder.recipe import get_varint, put_varint

MIN_BYTES = 4096
"""A shorter run stays in the body: the window of its pack sees the one before. Ours."""
MAX_BYTES = 1 << 15
MARK = 64
"""First byte of a response whose run was cut out; others begin with the number of their glues, 6 at most."""
_RUN = re.compile(rb'"prompt_token_ids":\s*\[([\d,\s]{%d,})\]' % MIN_BYTES)
_BORDER = re.compile(rb"000[,\s]+")


def cut(body: bytes) -> tuple[int, list[bytes]] | None:
    """Where the first long run of ids begins, and its segments; None = there is none."""
    found = _RUN.search(body)
    if found is None:
        return None
    first, last = found.span(1)
    borders = [border.end() for border in _BORDER.finditer(body, first, last)]
    pieces, start = [], first
    for border in (*borders, last):
        pieces += [body[at : min(at + MAX_BYTES, border)] for at in range(start, border, MAX_BYTES)]
        start = border
    return first, pieces


def put(at: int, recipe: bytes, rest: bytes) -> bytes:
    """A body told as what is left of it, where the run stood, and the recipe of its segments."""
    out = bytearray()
    for number in (MARK, at, len(recipe)):
        put_varint(out, number)
    return bytes(out) + recipe + rest


def get(data: bytes) -> tuple[int, bytes, bytes] | None:
    """Inverse of `put`; None = no run was cut out of it."""
    if data[:1] != bytes([MARK]):
        return None
    at, begin = get_varint(data, 1)
    size, begin = get_varint(data, begin)
    return at, data[begin : begin + size], data[begin + size :]
