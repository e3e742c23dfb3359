"""Amazon Bedrock: Anthropic's own format inside event stream frames, and Converse, which says the same in other words.

Converse is turned into Anthropic's words block by block, so that one reader serves both. Reference:
https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_Converse.html and ..._ConverseStream.html.
InvokeModel with the body of another vendor's model is not read: it has no `messages` of this shape.
"""

from recorder import canonical
from recorder.message import Head, Message
from recorder.wire import anthropic
from recorder.wire import body as b
from recorder.wire.body import Json


def head(body: Json, *, model: str = "") -> Head:
    return anthropic.head(_request(body), model=model)


def messages(body: Json) -> tuple[Message, ...]:
    return anthropic.messages(_request(body))


class Gatherer(anthropic.Gatherer):
    """Frames of either kind, or a whole body of either kind -> Reply."""

    def event(self, data: Json, name: str) -> None:
        for event in _events(data, name):
            super().event(event, name)

    def whole(self, body: Json) -> None:
        output = b.obj(b.obj(body.get("output")).get("message"))
        if output:
            body = _message(output) | {"stop_reason": body.get("stopReason"), "usage": _usage(b.obj(body.get("usage")))}
        super().whole(body)


def _request(body: Json) -> Json:
    """Converse is known by what only it has: blocks without `type`."""
    blocks = [x for m in b.arr(body.get("messages")) for x in b.arr(b.obj(m).get("content"))]
    if (
        "anthropic_version" in body
        or any("type" in b.obj(x) for x in blocks)
        or not isinstance(body.get("messages"), list)
    ):
        return body
    return {
        "messages": [_message(b.need_obj(m, f"messages[{i}]")) for i, m in enumerate(b.arr(body["messages"]))],
        "system": [_block(b.obj(x)) for x in b.arr(body.get("system")) if "cachePoint" not in b.obj(x)],
        "tools": [t for x in b.arr(b.obj(body.get("toolConfig")).get("tools")) if (t := _tool(b.obj(x)))],
    }


def _tool(tool: Json) -> Json:
    spec = b.obj(tool.get("toolSpec"))
    if not spec:
        return {} if "cachePoint" in tool else tool
    described = {"name": spec.get("name"), "description": spec.get("description")}
    return {**described, "input_schema": b.obj(b.obj(spec.get("inputSchema")).get("json"))}


def _message(message: Json) -> Json:
    content = message.get("content")
    if not isinstance(content, list):
        return message
    kept = [x if not isinstance(x, dict) else _block(x) for x in content if "cachePoint" not in b.obj(x)]
    return {"role": message.get("role"), "content": kept}


def _block(block: Json) -> Json:
    if "text" in block:
        return {"type": "text", "text": block["text"]}
    if use := b.obj(block.get("toolUse")):
        return {"type": "tool_use", "id": use.get("toolUseId"), "name": use.get("name"), "input": use.get("input", {})}
    if result := b.obj(block.get("toolResult")):
        content = [_block(x) if isinstance(x, dict) else x for x in b.arr(result.get("content"))]
        failed = result.get("status") == "error"
        return {"type": "tool_result", "tool_use_id": result.get("toolUseId"), "content": content, "is_error": failed}
    if reasoning := b.obj(block.get("reasoningContent")):
        text = b.obj(reasoning.get("reasoningText"))
        return {"type": "thinking", "thinking": text.get("text")} if text else {"type": "redacted_thinking"}
    if image := b.obj(block.get("image")):
        source = b.obj(image.get("source"))
        return {"type": "image", "source": {"data": source.get("bytes"), "media_type": f"image/{image.get('format')}"}}
    if "json" in block:
        return {"type": "text", "text": canonical.dumps(block["json"])}
    return {"type": next(iter(sorted(block)), ""), **block}


def _events(data: Json, name: str) -> list[Json]:
    """Converse's events in Anthropic's words; what already is in them stays."""
    index = data.get("contentBlockIndex")
    if name == "messageStart":
        return [{"type": "message_start", "message": {}}]
    if name == "contentBlockStart":
        use = b.obj(b.obj(data.get("start")).get("toolUse"))
        block = _block({"toolUse": use}) if use else {"type": "text", "text": ""}
        return [{"type": "content_block_start", "index": index, "content_block": block}]
    if name == "contentBlockDelta":
        return _delta(index, b.obj(data.get("delta")))
    if name == "messageStop":
        return [{"type": "message_delta", "delta": {"stop_reason": data.get("stopReason")}}, {"type": "message_stop"}]
    if name == "metadata":
        return [{"type": "message_delta", "delta": {}, "usage": _usage(b.obj(data.get("usage")))}]
    return [data]


def _delta(index: object, delta: Json) -> list[Json]:
    """Converse sends no start for text and reasoning: the first delta of an index says what it is."""
    if "text" in delta:
        kind: Json = {"type": "text_delta", "text": delta["text"]}
    elif use := b.obj(delta.get("toolUse")):
        kind = {"type": "input_json_delta", "partial_json": use.get("input")}
    else:
        reasoning = b.obj(delta.get("reasoningContent"))
        if "text" not in reasoning:
            return [{"type": "ping"}]
        kind = {"type": "thinking_delta", "thinking": reasoning["text"]}
    return [{"type": "content_block_delta", "index": index, "delta": kind}]


def _usage(usage: Json) -> Json:
    return {
        "input_tokens": usage.get("inputTokens"),
        "output_tokens": usage.get("outputTokens"),
        "cache_read_input_tokens": usage.get("cacheReadInputTokens"),
        "cache_creation_input_tokens": usage.get("cacheWriteInputTokens"),
    }
