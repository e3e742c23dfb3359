"""Content-encoding: chains, any chunking, cut and mislabelled bodies, and never an exception."""

import gzip
import zlib

import brotli  # type: ignore[import-untyped]
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from recorder.encoding import Decoder, decode, decode_chunks

TEXT = b'event: ping\ndata: {"type": "ping"}\n\n' * 40 + bytes(range(256))


def bare_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


ENCODERS = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli.compress,
    "zstd": zstandard.ZstdCompressor().compress,
}


@pytest.mark.parametrize("name", ENCODERS)
def test_a_whole_body_comes_back(name: str) -> None:
    assert decode(ENCODERS[name](TEXT), name) == TEXT
    assert decode(ENCODERS[name](TEXT), name.upper()) == TEXT


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 50])
def test_chunks_of_any_size_give_the_same(name: str, size: int) -> None:
    body = ENCODERS[name](TEXT)
    assert decode_chunks([body[i : i + size] for i in range(0, len(body), size)], name) == TEXT


def test_deflate_without_the_zlib_header_is_read_too() -> None:
    assert decode(bare_deflate(TEXT), "deflate") == TEXT


def test_codings_are_undone_from_the_last_to_the_first() -> None:
    assert decode(brotli.compress(gzip.compress(TEXT)), "gzip, br") == TEXT
    assert decode(gzip.compress(ENCODERS["zstd"](TEXT)), "identity, zstd , gzip") == TEXT


def test_several_gzip_members_and_zstd_frames_are_one_body() -> None:
    assert decode(gzip.compress(b"one ") + gzip.compress(b"two"), "gzip") == b"one two"
    assert decode(ENCODERS["zstd"](b"one ") + ENCODERS["zstd"](b"two"), "zstd") == b"one two"


@pytest.mark.parametrize("name", ["gzip", "deflate", "br", "zstd"])
def test_a_flushed_stream_that_was_cut_gives_all_that_was_flushed(name: str) -> None:
    if name == "gzip":
        g = zlib.compressobj(wbits=31)
        body = g.compress(b"data: 1\n\n") + g.flush(zlib.Z_SYNC_FLUSH)
    elif name == "deflate":
        d = zlib.compressobj()
        body = d.compress(b"data: 1\n\n") + d.flush(zlib.Z_SYNC_FLUSH)
    elif name == "br":
        b = brotli.Compressor()
        body = b.process(b"data: 1\n\n") + b.flush()
    else:
        z = zstandard.ZstdCompressor().compressobj()
        body = z.compress(b"data: 1\n\n") + z.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    decoder = Decoder(name)
    assert decoder.feed(body) == b"data: 1\n\n"  # at once, not only at the end
    assert decoder.finish() == b""
    assert decoder.error == ""


@pytest.mark.parametrize("name", ENCODERS)
def test_a_body_cut_anywhere_gives_a_beginning_of_the_whole(name: str) -> None:
    body = ENCODERS[name](TEXT)
    for length in range(4, len(body), 7):
        assert TEXT.startswith(decode(body[:length], name))


@pytest.mark.parametrize("name", ["gzip", "br", "zstd"])
def test_a_plain_body_with_a_wrong_header_comes_out_as_it_is(name: str) -> None:
    decoder = Decoder(name)
    assert decoder.feed(b'{"type": "error"}') + decoder.finish() == b'{"type": "error"}'
    assert decoder.error


def test_what_came_before_the_damage_is_kept() -> None:
    body = gzip.compress(b"whole") + gzip.compress(TEXT)[:9] + b"\xff" * 9
    decoder = Decoder("gzip")
    assert decoder.feed(body[:25]) == b"whole"
    decoder.feed(body[25:])
    assert "gzip" in decoder.error


def test_an_unknown_coding_leaves_the_body_alone() -> None:
    decoder = Decoder("compress")
    assert decoder.feed(b"\x1f\x9d..") == b"\x1f\x9d.."
    assert decoder.error == "unknown content-encoding 'compress'"


@given(st.binary(max_size=200), st.sampled_from(["gzip", "deflate", "br", "zstd", "gzip, zstd", "br, deflate"]))
def test_no_body_raises(body: bytes, name: str) -> None:
    assert isinstance(decode(body, name), bytes)
    assert isinstance(decode_chunks([body[i : i + 1] for i in range(len(body))], name), bytes)


@given(st.sampled_from(sorted(ENCODERS)), st.integers(0, 10**6), st.integers(0, 255))
def test_no_damaged_body_raises(name: str, at: int, byte: int) -> None:
    body = bytearray(ENCODERS[name](TEXT))
    body[at % len(body)] = byte
    assert isinstance(decode(bytes(body), name), bytes)
