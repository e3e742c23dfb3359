"""Anthropic Messages: a request's system, tools and messages; a reply from its events or from one JSON body.

Reference: https://docs.anthropic.com/en/api/messages and messages-streaming. What live streams do beyond it is cited at
the line that takes care of it.
"""

from dataclasses import dataclass, field

from recorder import canonical
from recorder.errors import WireError
from recorder.message import Block, Head, Message, Reply, Role, Tool, Usage
from recorder.wire import body as b
from recorder.wire.body import Json
from recorder.wire.reply import body_error, error_text
from recorder.wire.served import Gathered

_ROLES: dict[object, Role] = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_TOOL_KEYS = frozenset(("name", "description", "input_schema", "type"))


def head(body: Json, *, model: str = "") -> Head:
    """`model` is the one named in the address, for routes that leave it out of the body (Vertex, Bedrock)."""
    system = body.get("system")
    return Head(
        b.string(body.get("model")) or model,
        tuple(block for block in _content(system, "system") if not canonical.is_billing(block)),
        tuple(_tool(b.need_obj(t, f"tools[{i}]")) for i, t in enumerate(b.arr(body.get("tools")))),
    )


def messages(body: Json) -> tuple[Message, ...]:
    return b.messages(b.need_arr(body.get("messages"), "messages"), _message, "messages")


def compacted(prefix: tuple[Message, ...]) -> bool:
    """The prefix holds a `compaction` block: the server drops what stands before it, though it is still sent.

    `content: null` is a compaction that failed (https://docs.anthropic.com/en/docs/build-with-claude/compaction).
    """
    return any(
        block.name == "compaction" and '"content":null' not in block.text
        for message in prefix
        for block in message.blocks
        if block.kind == "other"
    )


def _tool(tool: Json) -> Tool:
    schema = tool.get("input_schema")
    if isinstance(schema, dict):
        return Tool(b.string(tool.get("name")), b.string(tool.get("description")), canonical.dumps(schema))
    rest = {k: v for k, v in canonical.visible(tool).items() if k not in ("name", "description")}
    return Tool(
        b.string(tool.get("name") or tool.get("type")), b.string(tool.get("description")), canonical.dumps(rest)
    )


def _message(item: Json, where: str) -> Message:
    role = item.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise WireError(f"{where}.role: expected user, assistant or system, got {role!r}")
    return Message(_ROLES[role], _content(item.get("content"), f"{where}.content"))


def _content(content: object, where: str) -> tuple[Block, ...]:
    if isinstance(content, str):
        return canonical.text(content)
    if content is None:
        return ()
    made = (_block(b.need_obj(x, f"{where}[{i}]"), where) for i, x in enumerate(b.need_arr(content, where)))
    return tuple(block for block in made if block.kind != "text" or block.text)


def _block(block: Json, where: str, *, nested: bool = False) -> Block:
    kind = block.get("type")
    if kind == "text":
        return Block("text", b.string(block.get("text")))
    if kind == "tool_use":
        arguments = canonical.dumps(block.get("input", {}))
        return Block("tool_call", arguments, b.string(block.get("name")), b.string(block.get("id")))
    if kind == "tool_result" and not nested:
        content = block.get("content")
        parts = (
            tuple(_block(b.need_obj(x, where), where, nested=True) for x in content)
            if isinstance(content, list)
            else _content(content, f"{where}.content")
        )
        parts = tuple(part for part in parts if part.kind != "text" or part.text)
        is_error = block.get("is_error") is True
        return Block("tool_result", id=b.string(block.get("tool_use_id")), parts=parts, is_error=is_error)
    if kind == "thinking":
        return Block("thinking", b.string(block.get("thinking")))
    if kind == "redacted_thinking":
        return Block("thinking", name="redacted")
    if kind == "image":
        return _image(b.obj(block.get("source")))
    return Block("other", canonical.dumps(_hashed(canonical.visible(block))), b.string(kind))


def _image(source: Json) -> Block:
    if isinstance(source.get("data"), str):
        return Block("image", canonical.data_hash(b.string(source["data"])), b.string(source.get("media_type")))
    return Block("image", b.string(source.get("url") or source.get("file_id")))


def _hashed(block: Json) -> Json:
    """A document's inline data stands as its hash, like an image's."""
    source = block.get("source")
    if not isinstance(source, dict) or source.get("type") != "base64":
        return block
    return block | {"source": source | {"data": canonical.data_hash(b.string(source.get("data")))}}


@dataclass(slots=True)
class _Open:
    """A content block while its deltas arrive."""

    start: Json
    text: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    content: object = None


class Gatherer:
    """Events or a whole body -> Reply. A second `message_start` is a retry inside the stream: it starts afresh."""

    def __init__(self) -> None:
        self._seen = False
        self._open: dict[int, _Open] = {}
        self._id = ""
        self._stop = ""
        self._ended = False
        self._error = ""
        self._usage = Usage()
        self._edits: list[str] = []
        self._notes: list[str] = []
        self._served = Gathered()

    def event(self, data: Json, name: str) -> None:
        kind = data.get("type") or name
        if kind == "content_block_delta":
            self._delta(b.number(data.get("index")) or 0, b.obj(data.get("delta")))
        elif kind == "content_block_start":
            self._seen = True
            self._open[b.number(data.get("index")) or 0] = _Open(b.obj(data.get("content_block")))
        elif kind == "message_start":
            self._start(b.obj(data.get("message")))
        elif kind == "message_delta":
            self._end(b.obj(data.get("delta")) | {k: data[k] for k in ("usage", "context_management") if k in data})
        elif kind == "message_stop":
            self._ended = True
        elif kind == "error":
            self._seen = True
            self._error = error_text(data.get("error"))
        self._served.take(data)

    def done(self) -> None:
        """Not a word of this format."""

    def whole(self, body: Json) -> None:
        self._seen = True
        if "input_tokens" in body:  # count_tokens
            body = {"usage": body, "content": []}
        if "content" not in body:
            self._error = body_error(body) or "expected content, got none"
            return
        self._start(body)
        for i, block in enumerate(b.arr(body.get("content"))):
            start = b.obj(block)
            self._open[i] = _Open(start, arguments=[canonical.dumps(start.get("input", {}))])
        self._end(body)
        self._served.take(body)
        self._ended = True

    def reply(self) -> Reply | None:
        if not self._seen:
            return None
        blocks = tuple(made for _, o in sorted(self._open.items()) if (made := _close(o)).kind != "text" or made.text)
        edits = list(self._edits)
        if compacted((Message("assistant", blocks),)):
            edits.append("compaction")
        return Reply(
            Message("assistant", blocks),
            stop_reason=self._stop,
            complete=self._ended and not self._error,
            id=self._id,
            usage=self._usage,
            error=self._error,
            server_edits=tuple(dict.fromkeys(edits)),
            served=self._served.served(),
            notes=tuple(self._notes),
        )

    def _start(self, message: Json) -> None:
        if self._seen and self._id:
            self._notes.append(f"the stream started again: {self._id} was given up for the next one")
            self._open.clear()
            self._stop, self._error, self._ended, self._edits = "", "", False, []
        self._seen = True
        self._id = b.string(message.get("id"))
        self._usage = _usage(b.obj(message.get("usage")))
        self._served = Gathered()
        self._served.take(message)

    def _delta(self, index: int, delta: Json) -> None:
        self._seen = True
        kind = delta.get("type")
        block = self._open.setdefault(index, _Open({"type": "thinking" if kind == "thinking_delta" else "text"}))
        if kind == "text_delta":
            block.text.append(b.string(delta.get("text")))
        elif kind == "thinking_delta":
            block.text.append(b.string(delta.get("thinking")))
        elif kind == "input_json_delta":
            block.arguments.append(b.string(delta.get("partial_json")))
        elif kind == "compaction_delta":
            block.content = delta.get("content")

    def _end(self, last: Json) -> None:
        self._stop = b.string(last.get("stop_reason")) or self._stop
        counted = _usage(b.obj(last.get("usage")))
        self._usage = b.merge(counted, self._usage)  # cumulative: the newest count is the count
        for edit in b.arr(b.obj(last.get("context_management")).get("applied_edits")):
            if _applied(b.obj(edit)):
                self._edits.append(b.string(b.obj(edit).get("type")) or "unknown")


def _applied(edit: Json) -> bool:
    """An edit that says it cleared nothing was no edit."""
    counts = [v for k, v in edit.items() if k.startswith("cleared_")]
    return not counts or any(counts)


def _close(block: _Open) -> Block:
    start, streamed = block.start, "".join(block.text)
    kind = start.get("type")
    if kind in ("text", "thinking"):
        return Block(kind, b.string(start.get(kind)) + streamed)
    raw = "".join(block.arguments)
    if kind == "tool_use":
        if not block.arguments and start.get("input"):
            raw = canonical.dumps(start["input"])  # some servers send the whole input in the start event
        return Block("tool_call", raw, b.string(start.get("name")), b.string(start.get("id")))
    if raw and "input" in start:
        start = start | {"input": _parsed(raw)}
    if block.content is not None:
        start = start | {"content": block.content}
    return _block(start, "content")


def _parsed(raw: str) -> object:
    try:
        return canonical.loads(raw)
    except ValueError:
        return raw


def _usage(usage: Json) -> Usage:
    return Usage(
        input=b.number(usage.get("input_tokens")),
        output=b.number(usage.get("output_tokens")),
        cache_read=b.number(usage.get("cache_read_input_tokens")),
        cache_write=b.number(usage.get("cache_creation_input_tokens")),
    )
