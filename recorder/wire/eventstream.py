"""AWS event streams from bytes, in any chunking: length, headers, payload, and a checksum over each.

    total u32 | headers u32 | crc32 of these 8 bytes | headers | payload | crc32 of all before      (big-endian)
    header = name length u8 | name | type u8 | value; a string (type 7) is length u16 | UTF-8

Reference: https://smithy.io/2.0/aws/amazon-eventstream.html
"""

import struct
from dataclasses import dataclass
from zlib import crc32

_SIZES = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}  # header types of fixed size; 6 and 7 carry their length
_LIMIT = 24 << 20  # the specification's largest message, with room to spare: a length beyond it is damage


@dataclass(frozen=True, slots=True)
class Frame:
    headers: dict[str, str]
    """Only those of type string: `:message-type`, `:event-type`, `:exception-type`, `:content-type`."""
    payload: bytes


class Decoder:
    """Feed chunks, get the frames they complete. After damage nothing more comes, and `error` says what it was."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.error = ""

    def feed(self, chunk: bytes) -> list[Frame]:
        if self.error:
            return []
        self._buffer += chunk
        frames: list[Frame] = []
        at = 0
        while len(self._buffer) - at >= 16:
            total, headers, prelude = struct.unpack_from(">III", self._buffer, at)
            if crc32(self._buffer[at : at + 8]) != prelude or not 16 + headers <= total <= _LIMIT:
                self.error = f"expected a frame's prelude with its checksum, got other bytes after {len(frames)} frames"
                break
            if len(self._buffer) - at < total:
                break
            message = bytes(self._buffer[at : at + total])
            if crc32(message[:-4]) != int.from_bytes(message[-4:], "big"):
                self.error = f"expected a frame with its checksum, got a damaged one of {total} bytes"
                break
            frames.append(Frame(_headers(message[12 : 12 + headers]), message[12 + headers : -4]))
            at += total
        del self._buffer[:at]
        return frames


def _headers(data: bytes) -> dict[str, str]:
    found: dict[str, str] = {}
    at = 0
    while at < len(data):
        name = data[at + 1 : at + 1 + data[at]].decode("utf-8", "replace")
        at += 1 + data[at]
        if at >= len(data):
            break
        kind = data[at]
        size = int.from_bytes(data[at + 1 : at + 3], "big") if kind in (6, 7) else _SIZES.get(kind, len(data))
        at += 3 if kind in (6, 7) else 1
        if kind == 7:
            found[name] = data[at : at + size].decode("utf-8", "replace")
        at += size
    return found
