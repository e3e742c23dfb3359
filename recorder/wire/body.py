"""JSON that somebody else wrote: read it into types at the edge, and say where it is not what it should be."""

from collections.abc import Callable
from hashlib import blake2b

import orjson

from recorder import canonical
from recorder.errors import WireError
from recorder.message import Head, Message, Usage

Json = dict[str, object]


def parse(data: bytes | str, where: str) -> Json:
    """The JSON object in `data`; WireError when it is anything else."""
    try:
        value = canonical.loads(data)
    except ValueError as error:
        raise WireError(f"{where}: expected a JSON object, got {len(data)} bytes that do not parse: {error}") from None
    return need_obj(value, where)


def need_obj(value: object, where: str) -> Json:
    if isinstance(value, dict):
        return value
    raise WireError(f"{where}: expected an object, got {type(value).__name__}")


def need_arr(value: object, where: str) -> list[object]:
    if isinstance(value, list):
        return value
    raise WireError(f"{where}: expected an array, got {type(value).__name__}")


def obj(value: object) -> Json:
    """The object, or an empty one where there is none."""
    return value if isinstance(value, dict) else {}


def arr(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def string(value: object) -> str:
    return value if isinstance(value, str) else ""


def number(value: object) -> int | None:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**63 else None


def first(*values: int | None) -> int | None:
    """The first that is not None: later reports go first, so that cumulative counts replace earlier ones."""
    return next((v for v in values if v is not None), None)


def merge(new: Usage, old: Usage) -> Usage:
    return Usage(
        first(new.input, old.input),
        first(new.output, old.output),
        first(new.cache_read, old.cache_read),
        first(new.cache_write, old.cache_write),
    )


_HEADS = 256
_ENTRY_CHARS = 512  # ours: what an entry costs beside its text


class Shared:
    """Messages already met, so that a history sent again and again is converted, hashed and kept in memory once.

    Keyed by a hash of the wire's JSON, then by content: a message whose cache mark moved is still the same object.
    Bounded by characters held; the longest unused go first.
    """

    def __init__(self, *, limit_chars: int = 64 << 20) -> None:
        self._limit_chars = limit_chars
        self._by_wire: dict[bytes, Message] = {}
        self._sizes: dict[bytes, int] = {}
        self._by_digest: dict[bytes, Message] = {}
        self._heads: dict[tuple[str, bytes], Head] = {}
        self.chars = 0

    def message(self, item: Json, convert: Callable[[Json, str], Message], where: str) -> Message:
        """`convert(item, where)`, or the equal message made before. `convert` must depend on `item` alone."""
        try:
            wire = orjson.dumps(item)
        except TypeError:  # lone surrogates, or very deep
            return convert(item, where)
        key = blake2b(wire, digest_size=16, person=convert.__module__[-16:].encode()).digest()
        known = self._by_wire.pop(key, None)
        if known is None:
            fresh = convert(item, where)
            known = self._by_digest.setdefault(fresh.digest, fresh)
            self._sizes[key] = len(wire) + _ENTRY_CHARS
            self.chars += self._sizes[key]
            if self.chars > self._limit_chars:
                self._forget()
        self._by_wire[key] = known
        return known

    def head(self, head: Head) -> Head:
        """The equal head met before: the tools of a harness are larger than most messages."""
        if len(self._heads) >= _HEADS:
            self._heads.clear()
        return self._heads.setdefault((head.model, head.digest), head)

    def _forget(self) -> None:
        for key in list(self._by_wire)[: len(self._by_wire) // 2]:
            self._by_wire.pop(key, None)  # another thread may hold it just now
            self.chars -= self._sizes.pop(key, 0)
        self._by_digest = {m.digest: m for m in self._by_wire.values()}


SHARED = Shared()


def messages(items: list[object], convert: Callable[[Json, str], Message], where: str) -> tuple[Message, ...]:
    """One message an item, the same objects for the same items."""
    places = (f"{where}[{i}]" for i in range(len(items)))
    return tuple(SHARED.message(need_obj(item, at), convert, at) for item, at in zip(items, places, strict=True))
