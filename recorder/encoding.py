"""Undo content-encoding, chunk by chunk, and take what a cut or damaged body still gives.

Nothing here raises: a body that is not what its header says comes out as it is, and `Decoder.error` says so.
"""

import zlib
from collections.abc import Callable, Iterable
from typing import Protocol

import brotli  # type: ignore[import-untyped]
import zstandard

_GZIP_MAGIC = b"\x1f\x8b"  # RFC 1952
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"  # RFC 8878
_FAULTS = (zlib.error, brotli.error, zstandard.ZstdError, EOFError, ValueError)


class _Stage(Protocol):
    def feed(self, chunk: bytes) -> bytes: ...

    def finish(self) -> bytes: ...


class _Zlib:
    """gzip (any number of members) and deflate (with or without zlib's own header)."""

    def __init__(self, wbits: int) -> None:
        self._wbits = wbits
        self._stream = zlib.decompressobj(wbits)

    def feed(self, chunk: bytes) -> bytes:
        out = self._stream.decompress(chunk)
        while self._stream.eof and self._stream.unused_data:
            rest = self._stream.unused_data
            if self._wbits != 31 or not rest.startswith(_GZIP_MAGIC[: len(rest)]):
                break
            self._stream = zlib.decompressobj(self._wbits)
            out += self._stream.decompress(rest)
        return out

    def finish(self) -> bytes:
        return self._stream.flush() if not self._stream.eof else b""


class _Brotli:
    def __init__(self) -> None:
        self._stream = brotli.Decompressor()

    def feed(self, chunk: bytes) -> bytes:
        out: bytes = self._stream.process(chunk)
        return out

    def finish(self) -> bytes:
        return b""


class _Zstd:
    def __init__(self) -> None:
        self._stream = zstandard.ZstdDecompressor().decompressobj(read_across_frames=True)

    def feed(self, chunk: bytes) -> bytes:
        return self._stream.decompress(chunk)

    def finish(self) -> bytes:
        return b""


def _gzip(head: bytes) -> _Stage | None:
    return _Zlib(31) if head.startswith(_GZIP_MAGIC) else None


def _deflate(head: bytes) -> _Stage:
    """RFC 9110 means zlib by `deflate`, yet bare deflate is sent too: the header's checksum tells (RFC 1950)."""
    wrapped = len(head) >= 2 and head[0] & 15 == 8 and (head[0] * 256 + head[1]) % 31 == 0
    return _Zlib(15 if wrapped else -15)


def _brotli(head: bytes) -> _Stage:
    return _Brotli()


def _zstd(head: bytes) -> _Stage | None:
    skippable = len(head) >= 4 and head[1:4] == b"\x2a\x4d\x18" and 0x50 <= head[0] <= 0x5F
    return _Zstd() if head.startswith(_ZSTD_MAGIC) or skippable else None


_STAGES: dict[str, tuple[int, Callable[[bytes], _Stage | None]]] = {
    "gzip": (2, _gzip),
    "x-gzip": (2, _gzip),
    "deflate": (2, _deflate),
    "br": (1, _brotli),
    "zstd": (4, _zstd),
}
"""Coding -> bytes needed to recognise it, and the stage (None: the body is not in this coding)."""


class _Coding:
    """One coding of a chain."""

    def __init__(self, name: str) -> None:
        self._need, self._open = _STAGES[name]
        self._name = name
        self._head = b""
        self._stage: _Stage | None = None
        self._plain = False
        self._produced = False
        self.error = ""

    def feed(self, chunk: bytes) -> bytes:
        if self._plain:
            return chunk
        if self.error:
            return b""
        if self._stage is None:
            self._head += chunk
            if len(self._head) < self._need:
                return b""
            chunk = self._head
            self._stage = self._open(chunk)
            if self._stage is None:
                self._plain = True
                self.error = f"expected {self._name}, got something else: body taken as it is"
                return chunk
        return self._run(self._stage.feed, chunk)

    def finish(self) -> bytes:
        if self._stage is None:
            return b"" if self._plain else self._head
        if self._plain or self.error:
            return b""
        stage = self._stage
        return self._run(lambda _: stage.finish(), b"")

    def _run(self, step: Callable[[bytes], bytes], chunk: bytes) -> bytes:
        try:
            out = step(chunk)
        except _FAULTS as fault:
            self.error = f"{self._name}: {fault}"
            if self._produced or self._head != chunk:
                return b""
            self._plain = True  # never was in this coding, and the coding has no magic that could have told
            return chunk
        self._produced = self._produced or bool(out)
        return out


class Decoder:
    """Incremental; codings are undone in the reverse of the order in which the header lists them (RFC 9110 8.4)."""

    def __init__(self, content_encoding: str = "") -> None:
        names = [name.strip().lower() for name in content_encoding.split(",")]
        known = [name for name in names if name in _STAGES]
        unknown = [name for name in names if name not in _STAGES and name not in ("", "identity")]
        self._unknown = f"unknown content-encoding {unknown[0]!r}" if unknown else ""
        self._codings = [_Coding(name) for name in reversed(known)] if not unknown else []

    def feed(self, chunk: bytes) -> bytes:
        for coding in self._codings:
            chunk = coding.feed(chunk)
        return chunk

    def finish(self) -> bytes:
        rest = b""
        for coding in self._codings:
            rest = coding.feed(rest) + coding.finish() if rest else coding.finish()
        return rest

    @property
    def error(self) -> str:
        """What was wrong so far; empty = nothing. A body that merely ends early is not a fault."""
        return self._unknown or next((c.error for c in self._codings if c.error), "")


def decode(body: bytes, content_encoding: str = "") -> bytes:
    """The body without its content-encoding, or as much of it as can be read."""
    if not content_encoding or not body:
        return body
    return decode_chunks((body,), content_encoding)


def decode_chunks(chunks: Iterable[bytes], content_encoding: str) -> bytes:
    decoder = Decoder(content_encoding)
    return b"".join((*map(decoder.feed, chunks), decoder.finish()))
