"""Gemini generateContent: one message for each content; a reply from chunks, from one body or from an array of chunks.

Reference: https://ai.google.dev/api/generate-content. The model stands in the address. Gemini CLI's own endpoint
(`v1internal`) wraps request and response once more. A chunk is a whole response with some more parts: neighbouring
texts are one text cut in pieces.
"""

from recorder import canonical
from recorder.errors import WireError
from recorder.message import Block, Head, Message, Reply, Role, Tool, Usage
from recorder.wire import body as b
from recorder.wire.body import Json
from recorder.wire.reply import body_error, error_text
from recorder.wire.served import Gathered

_ROLES: dict[object, Role] = {"user": "user", "model": "assistant", "function": "tool", "system": "system"}


def head(body: Json, *, model: str = "") -> Head:
    inner = _inner(body)
    system = inner.get("systemInstruction", inner.get("system_instruction"))
    return Head(
        model or b.string(body.get("model")).removeprefix("models/"),
        canonical.text(system) if isinstance(system, str) else _parts(b.obj(system), "systemInstruction"),
        tuple(tool for group in b.arr(inner.get("tools")) for tool in _tools(b.need_obj(group, "tools"))),
    )


def messages(body: Json) -> tuple[Message, ...]:
    contents = _inner(body).get("contents")
    if isinstance(contents, dict | str):
        contents = [contents if isinstance(contents, dict) else {"parts": [{"text": contents}]}]
    return b.messages(b.need_arr(contents, "contents"), _message, "contents")


def _inner(body: Json) -> Json:
    return b.obj(body.get("request")) or b.obj(body.get("generateContentRequest")) or body


def _tools(group: Json) -> list[Tool]:
    declared = group.get("functionDeclarations", group.get("function_declarations"))
    if not isinstance(declared, list):
        return [Tool(name, "", canonical.dumps(value)) for name, value in group.items()]
    return [
        Tool(
            b.string(f.get("name")),
            b.string(f.get("description")),
            canonical.dumps(f.get("parametersJsonSchema") or f.get("parameters") or {}),
        )
        for f in map(b.obj, declared)
    ]


def _message(item: Json, where: str) -> Message:
    role = item.get("role", "user")
    if not isinstance(role, str) or role not in _ROLES:
        raise WireError(f"{where}.role: expected user or model, got {role!r}")
    return Message(_ROLES[role], _parts(item, where))


def _parts(content: Json, where: str) -> tuple[Block, ...]:
    parts = content.get("parts")
    if isinstance(parts, dict):
        parts = [parts]
    made = [_part(b.need_obj(p, f"{where}.parts[{i}]")) for i, p in enumerate(b.arr(parts))]
    return tuple(block for block in made if block.kind != "text" or block.text)


def _part(part: Json) -> Block:
    if isinstance(text := part.get("text"), str):
        return Block("thinking" if part.get("thought") is True else "text", text)
    call = b.obj(part.get("functionCall", part.get("function_call")))
    if call:
        return Block(
            "tool_call", canonical.dumps(call.get("args") or {}), b.string(call.get("name")), b.string(call.get("id"))
        )
    result = b.obj(part.get("functionResponse", part.get("function_response")))
    if result:
        said = canonical.text(canonical.dumps(result.get("response") or {}))
        return Block("tool_result", name=b.string(result.get("name")), id=b.string(result.get("id")), parts=said)
    data = b.obj(part.get("inlineData", part.get("inline_data")))
    if data:
        media = b.string(data.get("mimeType") or data.get("mime_type"))
        return Block("image", canonical.data_hash(b.string(data.get("data"))), media)
    file = b.obj(part.get("fileData", part.get("file_data")))
    if file:
        return Block("image", b.string(file.get("fileUri") or file.get("file_uri")), b.string(file.get("mimeType")))
    shown = canonical.visible(part)
    if not shown:  # a part that carries nothing but its signature
        return Block("text")
    return Block("other", canonical.dumps(shown), next(iter(sorted(shown)), ""))


class Gatherer:
    """Chunks or a whole body -> Reply."""

    def __init__(self) -> None:
        self._seen = False
        self._id = ""
        self._blocks: list[tuple[Block, list[str]]] = []
        self._others: set[int] = set()
        self._stop = ""
        self._error = ""
        self._usage = Usage()
        self._served = Gathered()

    def event(self, data: Json, name: str) -> None:
        data = b.obj(data.get("response")) or data
        if data.get("error"):
            self._seen = True
            self._error = error_text(data["error"])
            return
        self._id = b.string(data.get("responseId")) or self._id
        self._usage = b.merge(_usage(b.obj(data.get("usageMetadata"))), self._usage)
        self._served.take(data)
        candidates = b.arr(data.get("candidates"))
        blocked = b.string(b.obj(data.get("promptFeedback")).get("blockReason"))
        self._stop = blocked or self._stop
        self._seen = self._seen or bool(candidates or blocked) or "usageMetadata" in data
        for candidate in map(b.obj, candidates):
            index = b.number(candidate.get("index")) or 0
            if index != 0:
                self._others.add(index)
                continue
            self._stop = b.string(candidate.get("finishReason")) or self._stop
            for block in _parts(b.obj(candidate.get("content")), "candidates[0].content"):
                self._take(block)

    def done(self) -> None:
        """Not a word of this format; a finish reason ends the stream."""

    def whole(self, body: Json) -> None:
        self.event(body, "")
        if "totalTokens" in body:
            self._usage, self._stop = Usage(input=b.number(body["totalTokens"])), "counted"
        elif not self._seen:
            self._error = body_error(body) or "expected candidates, got none"
        self._seen = True

    def reply(self) -> Reply | None:
        if not self._seen:
            return None
        notes = (f"{len(self._others)} more choices of this request were left out",) if self._others else ()
        return Reply(
            Message("assistant", tuple(_joined(block, pieces) for block, pieces in self._blocks)),
            stop_reason="" if self._stop == "counted" else self._stop,
            complete=bool(self._stop) and not self._error,
            id=self._id,
            usage=self._usage,
            error=self._error,
            served=self._served.served(),
            notes=notes,
        )

    def _take(self, block: Block) -> None:
        if block.kind in ("text", "thinking") and self._blocks and self._blocks[-1][0].kind == block.kind:
            self._blocks[-1][1].append(block.text)
        else:
            self._blocks.append((block, [block.text]))


def _joined(block: Block, pieces: list[str]) -> Block:
    return Block(block.kind, "".join(pieces)) if len(pieces) > 1 else block


def _usage(usage: Json) -> Usage:
    prompt, cached = b.number(usage.get("promptTokenCount")), b.number(usage.get("cachedContentTokenCount"))
    said, thought = b.number(usage.get("candidatesTokenCount")), b.number(usage.get("thoughtsTokenCount"))
    return Usage(
        input=None if prompt is None else prompt - (cached or 0),
        output=None if said is None and thought is None else (said or 0) + (thought or 0),
        cache_read=cached,
    )
