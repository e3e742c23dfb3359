"""Bytes at rest: a codec byte, then the bytes as that codec leaves them. Decoding always gives back exactly what came in.

0 data                      as they were: compressing gained nothing
1 zstd frame                alone
2 dictionary id, zstd frame against the dictionary (raw content, an earlier blob of the same sort)
"""

import zstandard

LEVEL = 12
PLAIN, ZSTD, ZSTD_DICT = 0, 1, 2


def pack(data: bytes) -> bytes:
    frame = zstandard.ZstdCompressor(level=LEVEL, write_content_size=True).compress(data) if data else b""
    return bytes([ZSTD]) + frame if data and len(frame) < len(data) else bytes([PLAIN]) + data


def unpack(blob: bytes) -> bytes:
    """ValueError when the blob is damaged."""
    if not blob:
        raise ValueError("blob: expected a codec byte, got nothing")
    codec, rest = blob[0], blob[1:]
    if codec == PLAIN:
        return rest
    if codec != ZSTD:
        raise ValueError(f"blob: expected codec {PLAIN} or {ZSTD}, got {codec}")
    try:
        return zstandard.ZstdDecompressor().decompress(rest)
    except zstandard.ZstdError as e:
        raise ValueError(f"blob: expected a zstd frame, got {e}") from e
