"""A recipe names the segments of a body in a few bytes, told as runs over the recipe of an earlier body.

copy   n << 1 | 1, zigzag(place - end of the last copy)     n segments of the base
new    n << 1,     zigzag(id - end of the last new run)     n segments whose ids follow each other
"""

from collections.abc import Sequence

MAX_SEGMENTS = 1 << 24
"""A damaged recipe must not ask for the machine's memory."""


def encode(ids: list[int], base: Sequence[int] = ()) -> bytes:
    """The recipe of a body; `decode(encode(ids, base), base) == ids`."""
    over = list(base)
    newest = max(over, default=-1)
    out = bytearray()
    next_place = next_id = at = 0
    while at < len(ids):
        first = ids[at]
        place = _place(over, first, next_place, newest)
        if place is None:
            length = 1
            while at + length < len(ids) and ids[at + length] == first + length:
                if first + length <= newest and first + length in over:
                    break
                length += 1
            put_varint(out, length << 1)
            put_varint(out, _zigzag(first - next_id))
            next_id = first + length
        else:
            length = shared_start(over, ids, place, at)
            put_varint(out, length << 1 | 1)
            put_varint(out, _zigzag(place - next_place))
            next_place = place + length
        at += length
    return bytes(out)


def _place(base: list[int], segment: int, expected: int, newest: int) -> int | None:
    if expected < len(base) and base[expected] == segment:
        return expected
    if segment > newest or segment not in base:
        return None
    try:
        return base.index(segment, expected)
    except ValueError:
        return base.index(segment)


def shared_start(a: Sequence[object], b: Sequence[object], i: int = 0, j: int = 0) -> int:
    """Length of what `a` from `i` and `b` from `j` begin with alike; for bytes and for lists."""
    most = min(len(a) - i, len(b) - j)
    if most <= 512 and isinstance(a, bytes) and isinstance(b, bytes):
        differ = int.from_bytes(a[i : i + most], "big") ^ int.from_bytes(b[j : j + most], "big")
        return most - (differ.bit_length() + 7) // 8
    done, step = 0, 1024
    while done < most and a[i + done : i + min(done + step, most)] == b[j + done : j + min(done + step, most)]:
        done = min(done + step, most)
        step = min(2 * step, 1 << 15)
    low, high = done, min(done + step, most)
    while low < high:
        middle = (low + high + 1) // 2
        if a[i + low : i + middle] == b[j + low : j + middle]:
            low = middle
        else:
            high = middle - 1
    return low


def decode(recipe: bytes, base: Sequence[int] = ()) -> list[int]:
    """The segment ids; ValueError when the recipe is cut short or points outside its base."""
    ids: list[int] = []
    next_place = next_id = at = 0
    while at < len(recipe):
        run, at = get_varint(recipe, at)
        step, at = get_varint(recipe, at)
        length = run >> 1
        distance = -(step >> 1) - 1 if step & 1 else step >> 1
        if len(ids) + length > MAX_SEGMENTS:
            raise ValueError(f"recipe: expected at most {MAX_SEGMENTS} segments, got {length} more at byte {at}")
        if run & 1:
            place = next_place + distance
            next_place = place + length
            if place < 0 or next_place > len(base):
                raise ValueError(f"recipe: expected places below {len(base)}, got {place}..{next_place} at byte {at}")
            ids += base[place:next_place]
        else:
            first = next_id + distance
            next_id = first + length
            ids += range(first, next_id)
    return ids


def put_varint(out: bytearray, number: int) -> None:
    """Seven bits a byte, least first, the high bit set on all but the last."""
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def get_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at `at` and the offset after it; ValueError at the end of the data."""
    number = shift = 0
    while True:
        if at >= len(data):
            raise ValueError(f"varint: expected more bytes, got the end at {at}")
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7


def _zigzag(number: int) -> int:
    return number << 1 if number >= 0 else (-number << 1) - 1
