"""A body is a recipe over shared segments, cut where JSON elements begin and end: a longer history re-uses the shorter.

Borders are a hint and never change a byte: joining the segments of any body, JSON or not, gives the body.

    {"model":"m","messages":[ | {"role":"user","content":[{"type":"text","text": | "a long string" | }]} | ,{"role":...

A body is compared with the one before it first: what they share, however far apart, is not scanned or hashed again.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise

from recorder.recipe import shared_start

ELEMENT_DEPTHS = (2, 4)
"""Nesting of arrays whose elements are cut: `messages`, `tools`, `system`, `input` (2), a message's `content` (4)."""
MIN_BLOCK_BYTES = 256
"""A content block smaller than this stays with its neighbour: a row and an id cost about 60 bytes. Ours."""
MIN_STRING_BYTES = 512
"""A string this long is a segment of its own: `cache_control` and key order change around it. Ours."""

HASH_STEP_BYTES = 1 << 15
Hashes = Sequence[tuple[int, blake2b]]
"""Hash states after so many bytes of a body, rising."""

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
BRACKET = re.compile(rb'(?:[^"\[\]{}]++|"[^"\\]*+(?:\\.[^"\\]*+)*+")*+([\[\]{}])', re.DOTALL)
_OPENING = frozenset(b"[{")
_ARRAY = ord("[")


def digest(data: bytes) -> bytes:
    """Content address of a segment or body: 16 bytes of BLAKE2b."""
    return blake2b(data, digest_size=16).digest()


def digest_along(body: bytes, known: Hashes = (), shared: int = 0) -> tuple[bytes, Hashes]:
    """`digest(body)`, gone on with from the last of the `known` states that lies in the `shared` start; and its own."""
    states = [state for state in known if state[0] <= shared]
    at, h = states[-1] if states else (0, blake2b(digest_size=16))
    h = h.copy()
    view = memoryview(body)
    while at < len(body):
        h.update(view[at : at + HASH_STEP_BYTES])
        at += HASH_STEP_BYTES
        if at < len(body):
            states.append((at, h.copy()))
    return h.digest(), states


def split(body: bytes) -> list[bytes]:
    """The segments of a body; `b"".join(split(body)) == body`, and no segment is empty."""
    offsets = [0, *(border for border, _ in _borders(body, 0, b"")), len(body)]
    return [body[a:b] for a, b in pairwise(offsets) if a < b]


@dataclass(frozen=True, slots=True)
class Cut:
    """A body with its segments."""

    body: bytes
    ends: list[int]
    """Offset after each segment, rising; the last is the body's length."""
    nested: list[bytes]
    """Containers open at each end, as their brackets: where the scan could go on."""
    digests: list[bytes]

    def segment(self, index: int) -> bytes:
        return self.body[self.ends[index - 1] if index else 0 : self.ends[index]]


EMPTY = Cut(b"", [], [], [])


def cut(body: bytes, before: Cut = EMPTY, shared: int | None = None) -> Cut:
    """Cut a body, taking over the segments it shares with the body cut before.

    `shared`: bytes that both begin with, where the caller knows.
    """
    ends: list[int] = []
    nested: list[bytes] = []
    digests: list[bytes] = []
    places: dict[bytes, int] = {}
    at, open_brackets = 0, b""
    follow: int | None = 0
    while at < len(body):
        if follow is not None and follow < len(before.ends):
            old = before.ends[follow - 1] if follow else 0
            same = shared if shared is not None and not old and not at else shared_start(before.body, body, old, at)
            reach = old + same
            last = bisect_right(before.ends, reach, follow)
            if last > follow:
                ends += [e - old + at for e in before.ends[follow:last]]
                nested += before.nested[follow:last]
                digests += before.digests[follow:last]
                at, open_brackets = ends[-1], nested[-1]
        follow = None
        places = places or dict(zip(before.digests, range(len(before.digests)), strict=True))
        for end, containers in _borders(body, at, open_brackets):
            name = digest(body[at:end])
            ends.append(end)
            nested.append(containers)
            digests.append(name)
            at = end
            place = places.get(name)
            if place is not None and before.nested[place] == containers:
                follow, open_brackets = place + 1, containers
                break
        else:
            if at < len(body):
                ends.append(len(body))
                nested.append(b"")
                digests.append(digest(body[at:]))
            at = len(body)
    return Cut(body, ends, nested, digests)


def _borders(body: bytes, start: int, open_brackets: bytes) -> Iterator[tuple[int, bytes]]:
    """Offsets at which `body` is cut after `start`, rising, its end left out, with the brackets open there. Linear."""
    if not start and body[:1] not in (b"{", b"["):
        return
    containers = bytearray(open_brackets)
    position = at = start
    total = len(body)
    match = BRACKET.match
    while found := match(body, position):
        end = found.end()
        if end - position > MIN_STRING_BYTES:
            for string in _STRING.finditer(body, position, end):
                first, last = string.span()
                if last - first >= MIN_STRING_BYTES:
                    if first > at:
                        yield (at := first), bytes(containers)
                    yield (at := last), bytes(containers)
        bracket = body[end - 1]
        if bracket in _OPENING:
            if len(containers) == 2 and containers[1] == _ARRAY and end - 1 > at:
                yield (at := end - 1), bytes(containers)
            containers.append(bracket)
        elif not containers:
            return
        else:
            del containers[-1]
            depth = len(containers)
            if (
                (depth == 2 or (depth == 4 and end - at >= MIN_BLOCK_BYTES))
                and containers[-1] == _ARRAY
                and at < end < total
            ):
                yield (at := end), bytes(containers)
        position = end
