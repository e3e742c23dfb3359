"""OpenAI Responses over HTTP and websocket: one message for each input item; a reply is all its output items.

Reference: https://platform.openai.com/docs/api-reference/responses and responses-streaming. With
`previous_response_id` only the new items are here. `output_item.done` is what counts: deltas only serve streams that
were cut before it, and `response.completed` may come with an empty `output`.
"""

from dataclasses import dataclass, field
from itertools import takewhile

from recorder import canonical
from recorder.errors import WireError
from recorder.message import Block, Head, Message, Reply, Role, Tool, Usage
from recorder.wire import body as b
from recorder.wire.body import Json
from recorder.wire.openai_chat import hashed, image
from recorder.wire.reply import body_error, error_text
from recorder.wire.served import Gathered

_ROLES: dict[object, Role] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
_COMPACTIONS = frozenset(("compaction", "compaction_summary", "context_compaction"))  # names of codex's own protocol
MORE_TOOLS = "additional_tools"


def unframed(body: Json) -> Json:
    """The request inside a websocket frame; WireError when the client said something else than `response.create`."""
    kind = body.get("type")
    if kind != "response.create":
        raise WireError(f"frame: expected response.create, got {kind!r}")
    return b.obj(body.get("response")) or body


def head(body: Json, *, model: str = "") -> Head:
    """Tools that `additional_tools` items give before anything is said are the head's; later ones stay where they are.

    https://platform.openai.com/docs/api-reference/responses/create: "made available at this item".
    """
    told = [("tools", body.get("tools"))]
    told += [(f"input[{i}].tools", item.get("tools")) for i, item in enumerate(_tools_first(body))]
    return Head(
        b.string(body.get("model")) or model,
        canonical.text(b.string(body.get("instructions"))),
        tuple(_tool(b.need_obj(t, f"{where}[{i}]")) for where, tools in told for i, t in enumerate(b.arr(tools))),
    )


def _tools_first(body: Json) -> list[Json]:
    """The `additional_tools` items that the input begins with; none where it goes on from an earlier response."""
    if body.get("previous_response_id"):
        return []
    items = (b.obj(item) for item in b.arr(body.get("input")))
    return list(takewhile(lambda item: item.get("type") == MORE_TOOLS, items))


def messages(body: Json) -> tuple[Message, ...]:
    items = body.get("input")
    if isinstance(items, str):
        return (Message("user", canonical.text(items)),)
    if items is None and (body.get("previous_response_id") or body.get("prompt")):
        return ()
    return b.messages(b.need_arr(items, "input")[len(_tools_first(body)) :], _message, "input")


def compacted(prefix: tuple[Message, ...]) -> bool:
    """The prefix holds a summary that only the server can read."""
    return any(block.name in _COMPACTIONS for message in prefix for block in message.blocks if block.kind == "other")


def _tool(tool: Json) -> Tool:
    if tool.get("type") == "function":
        schema = canonical.dumps(tool.get("parameters") or {})
        return Tool(b.string(tool.get("name")), b.string(tool.get("description")), schema)
    rest = {k: v for k, v in canonical.visible(tool).items() if k not in ("name", "description")}
    name = b.string(tool.get("name") or tool.get("server_label") or tool.get("type"))
    return Tool(name, b.string(tool.get("description")), canonical.dumps(rest))


def _message(item: Json, where: str) -> Message:
    kind = item.get("type") or "message"
    if kind == "message":
        role = item.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            raise WireError(f"{where}.role: expected system, developer, user or assistant, got {role!r}")
        return Message(_ROLES[role], _content(item.get("content"), f"{where}.content"))
    block = _item(item)
    if kind == MORE_TOOLS:
        return Message("system", (block,))
    if block.kind == "tool_result" or b.string(kind).endswith("_output"):
        return Message("tool", (block,))
    return Message("assistant", (canonical.echo(block),))


def _item(item: Json) -> Block:
    """An item that is not a message. Arguments stay as they came: `canonical.echo` makes the prefix's form."""
    kind, call = b.string(item.get("type")), b.string(item.get("call_id"))
    if kind in _CALLS:
        return Block("tool_call", canonical.raw(item.get(_CALLS[kind])), b.string(item.get("name")), call)
    if kind == "reasoning":
        return Block("thinking", _reasoning(item))
    if kind.endswith("_call_output") and (call or "output" in item):
        return Block("tool_result", id=call, parts=_output(item.get("output")))
    shown = canonical.visible(item, item_keys=kind != "item_reference")
    if kind.endswith("_call") and call:  # local_shell_call, apply_patch_call, computer_call: the client runs these
        shown = {k: v for k, v in shown.items() if k not in ("type", "call_id")}
        return Block("tool_call", canonical.dumps(shown), kind.removesuffix("_call"), call)
    return Block("other", canonical.dumps(shown), kind)


def _reasoning(item: Json) -> str:
    """The reasoning itself where the server shows it, its summary where not."""
    shown = [b.string(b.obj(part).get("text")) for part in b.arr(item.get("content"))]
    return "\n\n".join(shown or [b.string(b.obj(part).get("text")) for part in b.arr(item.get("summary"))])


def _output(output: object) -> tuple[Block, ...]:
    if isinstance(output, str | list) or output is None:
        return _content(output, "output")
    return canonical.text(canonical.dumps(output))


def _content(content: object, where: str) -> tuple[Block, ...]:
    if isinstance(content, str):
        return canonical.text(content)
    if content is None:
        return ()
    made = [_part(b.need_obj(x, f"{where}[{i}]")) for i, x in enumerate(b.need_arr(content, where))]
    return tuple(block for block in made if block.kind != "text" or block.text)


def _part(part: Json) -> Block:
    kind = part.get("type")
    if kind in ("input_text", "output_text", "text", "summary_text"):
        return Block("text", b.string(part.get("text")))
    if kind == "input_image":
        url = part.get("image_url")
        return image(b.string(url)) if isinstance(url, str) else Block("image", b.string(part.get("file_id")))
    if kind == "refusal":
        return Block("other", canonical.dumps(part.get("refusal")), "refusal")
    return Block("other", canonical.dumps(hashed(canonical.visible(part))), b.string(kind))


@dataclass(slots=True)
class _Open:
    """An output item while its deltas arrive, by the part that they belong to."""

    start: Json
    deltas: dict[str, list[str]] = field(default_factory=dict)
    done: Json | None = None


_DELTAS = {
    "response.output_text.delta": "text",
    "response.refusal.delta": "refusal",
    "response.reasoning_summary_text.delta": "summary",
    "response.reasoning_text.delta": "reasoning",
    "response.function_call_arguments.delta": "arguments",
    "response.custom_tool_call_input.delta": "arguments",
}


class Gatherer:
    """Events, frames or a whole body -> Reply."""

    def __init__(self) -> None:
        self._seen = False
        self._id = ""
        self._items: dict[int, _Open] = {}
        self._stop = ""
        self._ended = False
        self._error = ""
        self._usage = Usage()
        self._served = Gathered()

    def event(self, data: Json, name: str) -> None:
        kind = b.string(data.get("type")) or name
        index = b.number(data.get("output_index")) or 0
        if kind in _DELTAS:
            self._delta(index, kind, data)
        elif kind == "response.output_item.added":
            self._items[index] = _Open(b.obj(data.get("item")))
        elif kind == "response.output_item.done":
            item = b.obj(data.get("item"))
            self._items.setdefault(index, _Open(item)).done = item
        elif kind == "error":
            self._error = error_text(data.get("error") or {"type": data.get("code"), "message": data.get("message")})
        elif isinstance(data.get("response"), dict):
            self._response(b.obj(data["response"]), last=kind in _LAST)
        else:
            return
        self._seen = True
        self._served.take(data)

    def done(self) -> None:
        """Not a word of this format."""

    def whole(self, body: Json) -> None:
        self._seen = True
        if "input_tokens" in body and "output" not in body:
            body = {"usage": body, "output": []}
        if "output" in body:
            self._response(body, last=True)
        else:
            self._error = body_error(body) or "expected output, got none"

    def reply(self) -> Reply | None:
        if not self._seen:
            return None
        blocks = tuple(block for _, item in sorted(self._items.items()) for block in _close(item))
        return Reply(
            Message("assistant", blocks),
            stop_reason=self._stop,
            complete=self._ended and not self._error,
            id=self._id,
            usage=self._usage,
            error=self._error,
            server_edits=("compaction",) if compacted((Message("assistant", blocks),)) else (),
            served=self._served.served(),
        )

    def _delta(self, index: int, kind: str, data: Json) -> None:
        part = b.number(data.get("summary_index")) or b.number(data.get("content_index")) or 0
        deltas = self._items.setdefault(index, _Open({})).deltas
        deltas.setdefault(f"{_DELTAS[kind]}{part}", []).append(b.string(data.get("delta")))

    def _response(self, response: Json, *, last: bool) -> None:
        self._id = b.string(response.get("id")) or self._id
        self._served.take(response)
        if not last:
            return
        self._ended = True
        details = b.obj(response.get("incomplete_details"))
        self._stop = b.string(details.get("reason")) or b.string(response.get("status"))
        self._usage = b.merge(_usage(b.obj(response.get("usage"))), self._usage)
        if response.get("error") or self._stop in ("failed", "cancelled"):
            self._error = error_text(response.get("error")) or self._stop
        if not self._items:
            for i, item in enumerate(b.arr(response.get("output"))):
                self._items[i] = _Open({}, done=b.obj(item))


_LAST = frozenset(
    ("response.completed", "response.done", "response.incomplete", "response.failed", "response.cancelled")
)


def _close(item: _Open) -> tuple[Block, ...]:
    made = item.done or _cut(item)
    if made.get("type") == "message":
        return _content(made.get("content"), "output")
    return (_item(made),) if made.get("type") else ()


def _cut(item: _Open) -> Json:
    """What deltas give of an item whose `done` never came."""
    texts = {key: "".join(pieces) for key, pieces in sorted(item.deltas.items())}

    def of(name: str) -> list[Json]:
        return [{"type": f"{name}", "text": text} for key, text in texts.items() if key.startswith(name)]

    kind = b.string(item.start.get("type"))
    if kind == "message" or (not kind and of("text")):
        return {"type": "message", "content": of("text")}
    if kind == "reasoning":
        return {"type": "reasoning", "content": of("reasoning"), "summary": of("summary")}
    if kind in _CALLS:
        return item.start | {_CALLS[kind]: "".join(p.get("text", "") for p in of("arguments"))}  # type: ignore[misc]
    return item.start


def _usage(usage: Json) -> Usage:
    cached = b.number(b.obj(usage.get("input_tokens_details")).get("cached_tokens"))
    prompt = b.number(usage.get("input_tokens"))
    return Usage(
        input=None if prompt is None else prompt - (cached or 0),
        output=b.number(usage.get("output_tokens")),
        cache_read=cached,
    )
