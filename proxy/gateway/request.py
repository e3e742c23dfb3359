"""A request as an engine sees it: canonical content, and the few things that shape the form of the answer."""

import json
from dataclasses import dataclass

from proxy.gateway.ids import fresh
from recorder.errors import WireError
from recorder.message import Block, Head, Hints, Message, Role, Tool

_REPLY_IDS = {"anthropic": "msg_01", "openai_chat": "chatcmpl-", "openai_responses": "resp_"}


@dataclass(frozen=True)
class Request:
    wire: str
    """anthropic | openai_chat | openai_responses."""
    head: Head
    messages: tuple[Message, ...]
    hints: Hints
    stream: bool
    include_usage: bool
    """Chat completions: a last chunk with the usage was asked for."""
    reply_id: str
    """Fresh id of the reply to be given."""
    max_tokens: int | None
    """Limit on sampled tokens; None = not given."""

    @property
    def system_text(self) -> str:
        """The head's system text and leading system messages."""
        texts = [b.text for b in self.head.system]
        for message in self.messages:
            if message.role != "system":
                break
            texts.append(message.plain)
        return "\n".join(texts)

    @property
    def size_chars(self) -> int:
        """Characters of everything the model sees."""
        head = sum(b.size_chars for b in self.head.system)
        tools = sum(len(t.name) + len(t.description) + len(t.schema) for t in self.head.tools)
        return head + tools + sum(m.size_chars for m in self.messages)

    def user_text(self, *, last: bool) -> str:
        """Text of the first or last user message, tool results aside; empty without one."""
        users = [m for m in self.messages if m.role == "user"]
        if not users:
            return ""
        return "\n".join(b.text for b in users[-1 if last else 0].blocks if b.kind == "text")


def parse(wire: str, headers: dict[str, str], body: bytes) -> Request:
    """Read a decoded request body; header names in lower case."""
    try:
        data = json.loads(body)
    except ValueError as e:
        raise WireError(f"expected a JSON body, got {e}") from e
    if not isinstance(data, dict):
        raise WireError(f"expected a JSON object as body, got {type(data).__name__}")
    items = data.get("input" if wire == "openai_responses" else "messages")
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    if not isinstance(items, list):
        raise WireError(f"expected a list of messages, got {type(items).__name__}")
    limit = data.get("max_tokens") or data.get("max_output_tokens") or data.get("max_completion_tokens")
    options = data.get("stream_options")
    return Request(
        wire=wire,
        head=Head(
            model=str(data.get("model", "")),
            system=_blocks(data.get("system") or data.get("instructions")),
            tools=tuple(_tool(t) for t in data.get("tools") or () if isinstance(t, dict)),
        ),
        messages=tuple(_message(m) for m in items if isinstance(m, dict)),
        hints=Hints(
            session=headers.get("x-claude-code-session-id")
            or headers.get("x-session-id")
            or headers.get("session-id")
            or "",
            agent=headers.get("x-claude-code-agent-id", ""),
            previous_id=str(data.get("previous_response_id") or ""),
        ),
        stream=data.get("stream") is True,
        include_usage=isinstance(options, dict) and options.get("include_usage") is True,
        reply_id=fresh(_REPLY_IDS[wire]),
        max_tokens=limit if isinstance(limit, int) else None,
    )


def _message(item: dict[str, object]) -> Message:
    role = {"developer": "system", "function_call": "assistant", "reasoning": "assistant"}.get(
        str(item.get("role") or item.get("type")), str(item.get("role") or "user")
    )
    roles: dict[str, Role] = {"system": "system", "assistant": "assistant", "tool": "tool"}
    blocks = _blocks(item.get("content"))
    if "output" in item:
        blocks = (Block("tool_result", parts=_blocks(item["output"])),)
    if item.get("tool_calls") or "arguments" in item:
        calls = json.dumps(item.get("tool_calls") or item.get("arguments"))
        blocks = (*blocks, Block("tool_call", calls))
    return Message(roles.get(role, "user"), blocks)


def _blocks(content: object) -> tuple[Block, ...]:
    if isinstance(content, str):
        return (Block("text", content),)
    if not isinstance(content, list):
        return ()
    return tuple(_block(b) for b in content if isinstance(b, dict))


def _block(block: dict[str, object]) -> Block:
    kind = block.get("type")
    if kind in ("text", "input_text", "output_text"):
        return Block("text", str(block.get("text", "")))
    if kind == "tool_result":
        return Block("tool_result", parts=_blocks(block.get("content")))
    return Block("other", json.dumps(block), name=str(kind))


def _tool(tool: dict[str, object]) -> Tool:
    inner = tool.get("function")
    tool = inner if isinstance(inner, dict) else tool
    schema = tool.get("input_schema") or tool.get("parameters") or {}
    return Tool(str(tool.get("name", "")), str(tool.get("description", "")), json.dumps(schema, sort_keys=True))
