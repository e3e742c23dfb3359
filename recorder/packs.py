"""Packs hold what is new, compressed with what came just before it in the same session in view.

A session's packs (what a request added, what the reply said) form chains: each is a zstd frame whose dictionary is the
window, the last 64 kB of the chain so far. A reply's words, sent back in the next request, cost almost nothing.

    anchor <- 7 <- 8 <- 9 ... <- 22     then again    anchor <- 23 <- ...     at most MAX_CHAIN packs to read for one

The first byte of a pack's data says how to read the rest: 0 plain, 1 zstd.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

import zstandard
from sqlalchemy import Connection, insert, select

from recorder import schema

LEVEL = 9
WINDOW_BYTES = 1 << 16
MAX_CHAIN = 16
"""benchmarks/storage.py: 8 packs 321 kB, 16 packs 279 kB, 32 packs 266 kB for 200 turns. Ours."""
CACHE_BYTES = 32 << 20
CACHE_WINDOWS = 128
PLAIN, ZSTD = b"\0", b"\1"
_INSERT = insert(schema.pack).returning(schema.pack.c.id)
MAGIC = b"\x28\xb5\x2f\xfd"
"""Begins every zstd frame (RFC 8878): not stored."""


@dataclass(frozen=True, slots=True)
class Link:
    """A pack in its chain, ready for the next one."""

    id: int
    window: bytes
    """What the next pack may refer to: the end of the chain's content, this pack included."""
    depth: int
    anchor: "Link | None"
    """First pack of the chain; None = it is the first."""


def add(connection: Connection, content: bytes, after: Link | None) -> Link:
    """Store content as a pack behind `after`; a chain that is long enough starts again from its anchor."""
    if after is not None and after.depth >= MAX_CHAIN:
        after = after.anchor
    window = after.window if after else b""
    data = compress(content, window)
    row = {"base": after.id if after else None, "data": data}
    return _link(int(connection.execute(_INSERT, row).scalar_one()), content, after)


def compress(content: bytes, window: bytes) -> bytes:
    parameters = zstandard.ZstdCompressionParameters.from_level(
        LEVEL,
        source_size=len(content),
        dict_size=len(window),
        write_checksum=False,
        write_content_size=True,
    )
    frame = zstandard.ZstdCompressor(compression_params=parameters, dict_data=_dictionary(window)).compress(content)
    return ZSTD + frame[len(MAGIC) :] if len(frame) < len(content) else PLAIN + content


def decompress(data: bytes, window: bytes) -> bytes:
    """ValueError when the data is damaged."""
    if data[:1] == PLAIN:
        return data[1:]
    if data[:1] != ZSTD:
        raise ValueError(f"pack: expected data of kind 0 or 1, got {data[:1]!r}")
    try:
        return zstandard.ZstdDecompressor(dict_data=_dictionary(window)).decompress(MAGIC + data[1:])
    except (zstandard.ZstdError, MemoryError) as e:
        raise ValueError(f"pack: expected a zstd frame, got {e}") from e


def _dictionary(window: bytes) -> zstandard.ZstdCompressionDict | None:
    if len(window) < 8:  # zstd takes no shorter one
        return None
    return zstandard.ZstdCompressionDict(window, dict_type=zstandard.DICT_TYPE_RAWCONTENT)


def _link(pack: int, content: bytes, after: Link | None) -> Link:
    window = content if after is None else after.window + content
    anchor = None if after is None else after.anchor or after
    return Link(pack, window[-WINDOW_BYTES:], after.depth + 1 if after else 1, anchor)


class Packs:
    """Packs by id, with the contents and windows it met kept for what follows them."""

    def __init__(self) -> None:
        self._contents: OrderedDict[int, bytes] = OrderedDict()
        self._size = 0
        self._links: OrderedDict[int, Link] = OrderedDict()
        self._rows: dict[int, tuple[int | None, bytes]] = {}

    def forget(self) -> None:
        self._contents.clear()
        self._links.clear()
        self._rows.clear()
        self._size = 0

    def fetch(self, connection: Connection, ids: Iterable[int]) -> dict[int, bytes]:
        """Contents of packs; ValueError names the pack that is missing or damaged."""
        wanted = sorted(set(ids))
        missing = [i for i in wanted if i not in self._contents]
        for at in range(0, len(missing), 200):
            some = missing[at : at + 200]
            for row in connection.execute(select(schema.pack).where(schema.pack.c.id.in_(some))):
                self._rows[row.id] = (row.base, bytes(row.data))
        found = {i: self.content(connection, i) for i in wanted}
        self._rows.clear()
        return found

    def content(self, connection: Connection, pack: int) -> bytes:
        if pack in self._contents:
            self._contents.move_to_end(pack)
            return self._contents[pack]
        self.link(connection, pack)
        return self._contents[pack]

    def link(self, connection: Connection, pack: int) -> Link:
        """The pack with its window, read along its chain."""
        chain: list[tuple[int, bytes]] = []
        at: int | None = pack
        while at is not None and (at not in self._links or at == pack):
            if at == pack and at in self._links and at in self._contents:
                return self._links[at]
            base, data = self._row(connection, at)
            if base is not None and base >= at:
                raise ValueError(f"pack {at}: expected a base before it, got {base}")
            chain.append((at, data))
            at = base
        link = self._links[at] if at is not None else None
        for number, data in reversed(chain):
            try:
                content = decompress(data, link.window if link else b"")
            except ValueError as e:
                raise ValueError(f"pack {number}: {e}") from e
            link = _link(number, content, link)
            self._keep(link, content)
        assert link is not None
        return link

    def _row(self, connection: Connection, pack: int) -> tuple[int | None, bytes]:
        if pack in self._rows:
            return self._rows[pack]
        row = connection.execute(select(schema.pack).where(schema.pack.c.id == pack)).one_or_none()
        if row is None:
            raise ValueError(f"pack {pack}: expected it stored, got none")
        return row.base, bytes(row.data)

    def _keep(self, link: Link, content: bytes) -> None:
        if link.id not in self._contents:
            self._size += len(content)
        self._contents[link.id] = content
        self._links[link.id] = link
        while self._size > CACHE_BYTES and len(self._contents) > 1:
            self._size -= len(self._contents.popitem(last=False)[1])
        while len(self._links) > CACHE_WINDOWS:
            self._links.popitem(last=False)
