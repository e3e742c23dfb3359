"""OpenAI chat completions, as OpenAI and the many who speak it send it: requests, streamed chunks, whole replies.

Reference: https://platform.openai.com/docs/api-reference/chat. The system prompt is a message like the others, so
`Head.system` stays empty. Reasoning comes in vendor fields: `reasoning_content` (DeepSeek, Qwen, vLLM), `reasoning`
(OpenRouter, newer vLLM); a server that sends both sends the same text twice.
"""

from dataclasses import dataclass, field

from recorder import canonical
from recorder.errors import WireError
from recorder.message import Block, Head, Message, Reply, Role, Tool, Usage
from recorder.wire import body as b
from recorder.wire.body import Json
from recorder.wire.reply import body_error, error_text
from recorder.wire.served import Gathered

_ROLES: dict[object, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}


def head(body: Json, *, model: str = "") -> Head:
    """`model` is the deployment named in the address (Azure), for bodies that leave it out."""
    tools = b.arr(body.get("tools")) or [{"function": f} for f in b.arr(body.get("functions"))]
    made = tuple(_tool(b.need_obj(t, f"tools[{i}]")) for i, t in enumerate(tools))
    return Head(b.string(body.get("model")) or model, (), made)


def messages(body: Json) -> tuple[Message, ...]:
    return b.messages(b.need_arr(body.get("messages"), "messages"), _message, "messages")


def _tool(tool: Json) -> Tool:
    function = tool.get("function")
    if isinstance(function, dict):
        schema = canonical.dumps(function.get("parameters", {}))
        return Tool(b.string(function.get("name")), b.string(function.get("description")), schema)
    inner = b.obj(tool.get(b.string(tool.get("type"))))
    rest = {k: v for k, v in (inner or canonical.visible(tool)).items() if k not in ("name", "description")}
    name = b.string(inner.get("name") or tool.get("name") or tool.get("type"))
    return Tool(name, b.string(inner.get("description")), canonical.dumps(rest))


def _message(item: Json, where: str) -> Message:
    role = item.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise WireError(f"{where}.role: expected system, user, assistant or tool, got {role!r}")
    parts = _content(item.get("content"), f"{where}.content")
    if _ROLES[role] == "tool":
        call = b.string(item.get("tool_call_id")) or b.string(item.get("id"))  # qwen-agent knows only `id`
        return Message("tool", (Block("tool_result", name=b.string(item.get("name")), id=call, parts=parts),))
    if role != "assistant":
        return Message(_ROLES[role], parts)
    return Message(
        "assistant", (*_thinking(_reasoning(item)), *parts, *_refusal(item.get("refusal")), *_calls(item, where))
    )


def _reasoning(item: Json) -> str:
    return b.string(item.get("reasoning_content")) or b.string(item.get("reasoning"))


def _thinking(text: str) -> tuple[Block, ...]:
    return (Block("thinking", text),) if text else ()


def _refusal(text: object) -> tuple[Block, ...]:
    return (Block("other", canonical.dumps(text), "refusal"),) if isinstance(text, str) and text else ()


def _calls(item: Json, where: str) -> list[Block]:
    calls = [b.need_obj(call, f"{where}.tool_calls") for call in b.arr(item.get("tool_calls"))]
    if isinstance(item.get("function_call"), dict):
        calls.append({"function": item["function_call"]})
    return [canonical.echo(_call(call)) for call in calls]


def _call(call: Json) -> Block:
    """A call as the wire has it: `custom` tools carry free text, functions JSON in a string."""
    function = b.obj(call.get("function")) or b.obj(call.get("custom"))
    raw = canonical.raw(function.get("arguments", function.get("input")))
    return Block("tool_call", raw, b.string(function.get("name")), b.string(call.get("id")))


def _content(content: object, where: str) -> tuple[Block, ...]:
    if isinstance(content, str):
        return canonical.text(content)
    if content is None:
        return ()
    made = [_part(b.need_obj(x, f"{where}[{i}]")) for i, x in enumerate(b.need_arr(content, where))]
    return tuple(block for block in made if block.kind != "text" or block.text)


def _part(part: Json) -> Block:
    kind = part.get("type")
    if kind in ("text", "input_text", "output_text") or (kind is None and isinstance(part.get("text"), str)):
        return Block("text", b.string(part.get("text")))
    if kind == "image_url":
        url = part.get("image_url")
        return image(url if isinstance(url, str) else b.string(b.obj(url).get("url")))
    if kind == "thinking":
        return Block("thinking", _mistral(part))
    if kind == "refusal":
        return Block("other", canonical.dumps(part.get("refusal")), "refusal")
    return Block("other", canonical.dumps(hashed(canonical.visible(part))), b.string(kind))


def _mistral(part: Json) -> str:
    """Reasoning as Mistral nests it: `{"type": "thinking", "thinking": [{"type": "text", "text": ...}]}`."""
    return "".join(b.string(b.obj(text).get("text")) for text in b.arr(part.get("thinking")))


def image(url: str) -> Block:
    """An image by URL, or by its hash where the URL is the data itself."""
    if not url.startswith("data:"):
        return Block("image", url)
    head, _, data = url.removeprefix("data:").partition(",")
    return Block("image", canonical.data_hash(data), head.partition(";")[0])


def hashed(part: Json) -> Json:
    """Inline audio and files stand as their hash, one level down as this format nests them."""
    made: Json = {}
    for key, value in part.items():
        if isinstance(value, dict):
            made[key] = hashed(value) if key in ("input_audio", "file") else value
        else:
            inline = key in ("data", "file_data") and isinstance(value, str)
            made[key] = canonical.data_hash(value) if inline and isinstance(value, str) else value
    return made


@dataclass(slots=True)
class _Open:
    """A tool call while its chunks arrive: id and name come once, in the first."""

    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)


class Gatherer:
    """Chunks or a whole body -> Reply. Of several choices the one with index 0 is the reply; the others are noted."""

    def __init__(self) -> None:
        self._seen = False
        self._id = ""
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._refusal: list[str] = []
        self._calls: dict[int, _Open] = {}
        self._others: set[int] = set()
        self._stop = ""
        self._ended = False
        self._error = ""
        self._usage = Usage()
        self._served = Gathered()

    def event(self, data: Json, name: str) -> None:
        if data.get("error"):
            self._seen = True
            self._error = error_text(data["error"])
            return
        self._top(data)
        for choice in map(b.obj, b.arr(data.get("choices"))):
            self._choice(choice, b.obj(choice.get("delta")) or b.obj(choice.get("message")))

    def done(self) -> None:
        self._seen = True
        self._ended = True

    def whole(self, body: Json) -> None:
        self._seen = True
        if "choices" in body:
            self.event(body, "")
            self._ended = True
        else:
            self._error = body_error(body) or "expected choices, got none"

    def reply(self) -> Reply | None:
        if not self._seen:
            return None
        blocks = (
            *_thinking("".join(self._thinking)),
            *canonical.text("".join(self._text)),
            *_refusal("".join(self._refusal)),
            *(Block("tool_call", "".join(c.arguments), c.name, c.id) for _, c in sorted(self._calls.items())),
        )
        notes = (f"{len(self._others)} more choices of this request were left out",) if self._others else ()
        return Reply(
            Message("assistant", blocks),
            stop_reason=self._stop,
            complete=(self._ended or bool(self._stop)) and not self._error,
            id=self._id,
            usage=self._usage,
            error=self._error,
            served=self._served.served(),
            notes=notes,
        )

    def _top(self, data: Json) -> None:
        self._seen = self._seen or "choices" in data
        self._id = b.string(data.get("id")) or self._id
        self._usage = b.merge(_usage(b.obj(data.get("usage"))), self._usage)
        self._served.take({"prompt_token_ids": data.get("prompt_token_ids")})

    def _choice(self, choice: Json, delta: Json) -> None:
        index = b.number(choice.get("index")) or 0
        if index != 0:
            self._others.add(index)
            return
        self._served.take(choice)
        self._stop = b.string(choice.get("finish_reason")) or self._stop
        content = delta.get("content")
        for part in map(b.obj, b.arr(content)):
            self._text.append(b.string(part.get("text")))
            self._thinking.append(_mistral(part))
        self._text.append(b.string(content))
        self._thinking.append(_reasoning(delta))
        self._refusal.append(b.string(delta.get("refusal")))
        for call in map(b.obj, b.arr(delta.get("tool_calls"))):
            self._call(call)
        if isinstance(delta.get("function_call"), dict):
            self._call({"index": 0, "function": delta["function_call"]})

    def _call(self, call: Json) -> None:
        made = _call(call)
        index = b.number(call.get("index"))
        if index is None:  # some servers leave it out: a new id is a new call
            fresh = not self._calls or (made.id and made.id != self._calls[max(self._calls)].id)
            index = max(self._calls, default=-1) + (1 if fresh else 0)
        known = self._calls.setdefault(index, _Open())
        known.id = known.id or made.id
        known.name = known.name or made.name
        known.arguments.append(made.text)


def _usage(usage: Json) -> Usage:
    cached = b.number(b.obj(usage.get("prompt_tokens_details")).get("cached_tokens"))
    prompt = b.number(usage.get("prompt_tokens"))
    return Usage(
        input=None if prompt is None else prompt - (cached or 0),
        output=b.number(usage.get("completion_tokens")),
        cache_read=cached,
    )
