"""Other words in the same bodies: every text of a call handed to a function, streams joined before and cut again after.

A reply that streams is read as channels, the text that one block's deltas make together: what is done to a text is
then the same whether it came in one piece, in fifty, or stands in the next request. Events and frames stay as they are.
"""

import json
import re
import struct
from base64 import b64decode, b64encode
from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol
from zlib import crc32

import orjson

from recorder import canonical
from recorder.call import Call
from recorder.encoding import decode

Path = tuple[str, ...]
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)("|\\?\Z)(\s*:)?', re.DOTALL)
_DATA = re.compile(rb"data: ?")
_ARGUMENTS = frozenset(("arguments", "partial_json"))
_PLAIN = re.compile(rb"[\r\n]*|(event|id|retry): ?[\w.-]*|:")
"""Lines of an event stream that hold no wording."""
_ENDS = re.compile(rb"(\r\n|\r|\n)")


class Leaf(Protocol):
    def __call__(self, text: str, path: Path) -> str:
        """The text that stands in place of this one; `path` = the keys that lead to it, without places in arrays.

        Keys are offered too, with `*` behind the path.
        """
        ...


def rewritten(call: Call, leaf: Leaf) -> Call:
    """The call with other words. A body in which no word changed stays byte for byte, compression included."""
    request = decode(call.request_body, call.request_header("content-encoding"))
    response = decode(call.response_body, call.response_header("content-encoding"))
    new_request, new_response = body(request, leaf), reply(response, leaf)
    if new_request != request:
        call = replace(call, request_body=new_request, request_headers=_plain(call.request_headers))
    if new_response != response:
        call = replace(call, response_body=new_response, response_headers=_plain(call.response_headers))
    return call


def body(data: bytes, leaf: Leaf) -> bytes:
    """JSON as a request or a whole reply carries it; anything else is one text."""
    value = _json(data)
    if value is None:
        text = data.decode("utf-8", "surrogateescape")
        made = leaf(text, ())
        return data if made == text else made.encode("utf-8", "surrogateescape")
    return _unless_same(data, value, walk(value, leaf, ()))


def reply(data: bytes, leaf: Leaf) -> bytes:
    """A reply in any of the forms that `recorder.wire.reply` reads."""
    start = data.lstrip(b" \t\r\n")[:1]
    if start == b"\x1e":
        lead, *frames = data.split(b"\x1e")
        turned = _events([f.strip() for f in frames], leaf)
        return lead + b"".join(b"\x1e" + _within(f, t) for f, t in zip(frames, turned, strict=True))
    if start == b"\0":
        return _aws(data, leaf)
    if start == b"[" and isinstance(value := _json(data), list):
        elements = _events([_dumps(v) for v in value], leaf)
        return _unless_same(data, value, [canonical.loads(e) for e in elements])
    if start in (b"{", b"[", b""):
        return body(data, leaf)
    lines = _ENDS.split(data)
    places = [(i, m.end()) for i, line in enumerate(lines) if (m := _DATA.match(line))]
    for (i, at), made in zip(places, _events([lines[i][at:] for i, at in places], leaf), strict=True):
        lines[i] = lines[i][:at] + made
    taken = {i for i, _ in places}
    return b"".join(
        line if i in taken or _PLAIN.fullmatch(line) else _broken(line, leaf) for i, line in enumerate(lines)
    )


def _within(frame: bytes, text: bytes) -> bytes:
    """The text with the blanks that stood around the old one."""
    core = frame.strip()
    return frame.replace(core, text, 1) if core else frame


def walk(value: object, leaf: Leaf, path: Path) -> object:
    if isinstance(value, str):
        return literals(value, leaf, path) if path and path[-1] in _ARGUMENTS else leaf(value, path)
    if isinstance(value, dict):
        return {leaf(k, (*path, "*")): walk(v, leaf, (*path, k)) for k, v in value.items()}
    if isinstance(value, list):
        return [walk(v, leaf, path) for v in value]
    return value


def literals(text: str, leaf: Leaf, path: Path) -> str:
    """JSON in a text, perhaps cut short: its strings are rewritten one by one, all between them stays as it is."""

    def other(found: re.Match[str]) -> str:
        raw, end, key = found[1], found[2], found[3]
        try:
            old = json.loads(f'"{raw}"', strict=False)
        except ValueError:
            old = raw  # an escape that was cut
        new = leaf(old, (*path, "*" if key else "$"))
        return found[0] if new == old else json.dumps(new, ensure_ascii=False)[:-1] + (end and '"') + (key or "")

    return _STRING.sub(other, text)


def _events(events: list[bytes], leaf: Leaf) -> list[bytes]:
    """Events of one stream, rewritten together. One that is no JSON (the last of a cut stream) is one text."""
    values = [_json(e) for e in events]
    joined: dict[Path, list[tuple[dict[str, object], str]]] = {}
    before: Path = ()
    for value in values:
        if isinstance(value, dict):
            for name, holder, key in _deltas(value, before):
                joined.setdefault(name, []).append((holder, key))
                before = name
    pieces: dict[tuple[int, str], str] = {}
    for name, places in joined.items():
        olds = [str(holder[key]) for holder, key in places]
        whole = "".join(olds)
        new = literals(whole, leaf, name) if name[-1] in _ARGUMENTS else leaf(whole, name)
        for (holder, key), piece in zip(places, olds if new == whole else recut(olds, new), strict=True):
            pieces[id(holder), key] = piece

    def rebuilt(value: object, path: Path) -> object:
        if isinstance(value, dict):
            return {
                leaf(k, (*path, "*")): pieces[id(value), k] if (id(value), k) in pieces else rebuilt(v, (*path, k))
                for k, v in value.items()
            }
        return [rebuilt(v, path) for v in value] if isinstance(value, list) else walk(value, leaf, path)

    made: list[bytes] = []
    for event, value in zip(events, values, strict=True):
        if value is None:
            made.append(event if event.strip() in (b"[DONE]", b"") else _broken(event, leaf))
        else:
            made.append(_unless_same(event, value, rebuilt(value, ())))
    return made


def _broken(event: bytes, leaf: Leaf) -> bytes:
    text = event.decode("utf-8", "replace")
    new = leaf(literals(text, leaf, ()), ())
    return event if new == text else new.encode("utf-8", "surrogatepass")


def _deltas(event: dict[str, object], before: Path) -> Iterator[tuple[Path, dict[str, object], str]]:
    """Where an event holds a piece of a longer text: the name of that text, ending in what it is; holder and key."""
    kind = str(event.get("type", ""))
    delta, index = event.get("delta"), str(event.get("index", ""))
    if kind == "content_block_start" and isinstance(block := event.get("content_block"), dict):
        for key in ("text", "thinking"):
            if isinstance(block.get(key), str):
                yield (kind[:13], index, key), block, key
    elif kind == "content_block_delta" and isinstance(delta, dict):
        for key in ("text", "thinking", "partial_json"):
            if isinstance(delta.get(key), str):
                yield (kind[:13], index, key), delta, key
    elif kind.startswith("response.") and isinstance(delta, str):
        places = (str(event.get(k, "")) for k in ("output_index", "content_index", "summary_index"))
        yield (kind, *places, "arguments" if "arguments" in kind else "text"), event, "delta"
    for choice in _objects(event.get("choices")):
        made, number = choice.get("delta"), str(choice.get("index", 0))
        if isinstance(made, dict):
            for key in ("content", "reasoning_content", "reasoning", "refusal"):
                if isinstance(made.get(key), str):
                    yield ("choices", number, key, "text"), made, key
            calls = [(str(c.get("index", i)), c) for i, c in enumerate(_objects(made.get("tool_calls")))]
            for place, call in calls:
                for holder, key in ((call.get("function"), "arguments"), (call.get("custom"), "input")):
                    if isinstance(holder, dict) and isinstance(holder.get(key), str):
                        yield ("choices", number, place, key), holder, key
    inner = event.get("response") if isinstance(event.get("response"), dict) else event
    assert isinstance(inner, dict)
    for candidate in _objects(inner.get("candidates")):
        content = candidate.get("content")
        for part in _objects(content.get("parts") if isinstance(content, dict) else None):
            same = ("candidates", str(candidate.get("index", 0)), str(part.get("thought")))
            run = before[3] if before[:3] == same else str(int(before[3]) + 1 if before[:1] == same[:1] else 0)
            before = (*same, run, "text")
            if isinstance(part.get("text"), str):
                yield before, part, "text"
            else:
                before = (*same[:2], "call", run, "text")


def recut(olds: list[str], new: str) -> list[str]:
    """A text in as many pieces as there were, each with its share of the length."""
    total, done, at, made = sum(map(len, olds)), 0, 0, []
    for old in olds:
        done += len(old)
        to = len(new) * done // total if total else len(new)
        made.append(new[at:to])
        at = to
    return made


def _aws(data: bytes, leaf: Leaf) -> bytes:
    """Amazon's frames: length, length of headers, checksum, headers, payload, checksum."""
    heads: list[bytes] = []
    payloads: list[bytes] = []
    at = 0
    while at + 16 <= len(data):
        size, head_size = struct.unpack_from(">II", data, at)
        if size < 16 + head_size or at + size > len(data):
            break
        heads.append(data[at + 12 : at + 12 + head_size])
        payloads.append(data[at + 12 + head_size : at + size - 4])
        at += size
    boxes = [_json(p) for p in payloads]
    opened = [_unwrapped(box) for box in boxes]
    wrapped = [o is not None for o in opened]
    inner = [p if o is None else o for o, p in zip(opened, payloads, strict=True)]
    out: list[bytes] = []
    for head, payload, old, new, is_wrapped in zip(heads, payloads, inner, _events(inner, leaf), wrapped, strict=True):
        made = payload if new == old else _wrapped(payload, new) if is_wrapped else new
        prelude = struct.pack(">II", 16 + len(head) + len(made), len(head))
        frame = prelude + struct.pack(">I", crc32(prelude)) + head + made
        out.append(frame + struct.pack(">I", crc32(frame)))
    rest = data[at:].decode("utf-8", "surrogateescape")
    return b"".join([*out, leaf(rest, ()).encode("utf-8", "surrogateescape")])


def _unwrapped(box: object) -> bytes | None:
    """The event that a payload carries as base64; None = it carries none."""
    if not isinstance(box, dict) or not isinstance(box.get("bytes"), str):
        return None
    try:
        return b64decode(box["bytes"])
    except ValueError:
        return None


def _wrapped(payload: bytes, event: bytes) -> bytes:
    return _dumps(orjson.loads(payload) | {"bytes": b64encode(event).decode()})


def _objects(value: object) -> list[dict[str, object]]:
    return [v for v in value if isinstance(v, dict)] if isinstance(value, list) else []


def _plain(headers: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, value in headers if name not in ("content-encoding", "content-length"))


def _json(data: bytes) -> object:
    """The object or array; None = it is neither."""
    try:
        value = canonical.loads(data)
    except ValueError:
        return None
    return value if isinstance(value, dict | list) else None


def _dumps(value: object) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:  # lone surrogates, integers beyond 64 bits
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def _unless_same(data: bytes, old: object, new: object) -> bytes:
    return data if new == old else _dumps(new)
