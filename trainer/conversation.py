"""Canonical messages in the words of a chat template. What a template has no words for is said in text, and named.

    tools_in_system    the tools, one JSON a line, behind the system text
    system_in_user     the system text in front of the first user message; a later one as `<system>...</system>`
    thinking_in_text   `<think>...</think>` in front of the text
    calls_in_text      `<tool_call>{"name": ..., "arguments": ...}</tool_call>` behind the text
    results_in_user    `<tool_response>...</tool_response>` in a user message
    user_first         an empty user message, where a template will not start, or finds no query, without one
    image              `[image image/png]`
    reordered          text after a tool call moves in front of it, as the templates' messages have it
    invalid_arguments  arguments that are no JSON stand as the string they are

Adjacent messages of one role become one (the APIs join them too), texts joined by an empty line.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from recorder.message import Block, Head, Message
from trainer.template import ChatMessage, Takes, ToolCall, ToolSchema, user

JOIN = "\n\n"


@dataclass(frozen=True, slots=True)
class Conversation:
    messages: tuple[ChatMessage, ...]
    tools: tuple[ToolSchema, ...]
    """For the template's `tools` argument; empty where it takes none."""
    fallbacks: frozenset[str]


@dataclass(slots=True)
class Converter:
    """Says messages in a template's words; `fallbacks` collects what had to be said otherwise."""

    takes: Takes
    escape: Callable[[str], str]
    """Breaks the spelling of control tokens in content."""
    sampled: Mapping[Block, Block] = field(default_factory=dict)
    """Tool calls as prefixes carry them -> as they were sampled: keys keep their order, call and echo read the same."""
    fallbacks: set[str] = field(default_factory=set)
    called: set[str] = field(default_factory=set)

    def conversation(self, head: Head, messages: Sequence[Message], *, user_first: bool = False) -> Conversation:
        """The prefix of a call. Leading system messages join the head's."""
        leading = next((i for i, m in enumerate(messages) if m.role != "system"), len(messages))
        system = [*head.system] + [b for m in messages[:leading] for b in m.blocks]
        texts = [self._text(block) for block in system]
        tools: tuple[ToolSchema, ...] = tuple(self._schema(t.name, t.description, t.schema) for t in head.tools)
        if tools and not self.takes.tools:
            self.fallbacks.add("tools_in_system")
            texts += ["# Tools\n" + "\n".join(_json(t["function"]) for t in tools)]
            tools = ()
        said: list[ChatMessage] = []
        opening = JOIN.join(t for t in texts if t)
        if opening and self.takes.system:
            said.append({"role": "system", "content": opening})
        elif opening:
            self.fallbacks.add("system_in_user")
            said.append(user(opening))
        if user_first:
            self.fallbacks.add("user_first")
            said.append(user(""))
        for message in turns(messages[leading:]):
            said += self.say(message)
        return Conversation(tuple(merged(said)), tools, frozenset(self.fallbacks))

    def say(self, message: Message) -> list[ChatMessage]:
        if message.role == "assistant":
            return [self._assistant(message.blocks)]
        if message.role == "system" and not self.takes.later_system:
            self.fallbacks.add("system_in_user")
            return [user(f"<system>\n{self._texts(message.blocks)}\n</system>")]
        said: list[ChatMessage] = []
        rest: list[Block] = []
        for block in message.blocks:
            if block.kind == "tool_result":
                if rest:
                    said.append({"role": self._role(message), "content": self._texts(rest)})
                    rest = []
                said.append(self._result(block))
            else:
                rest.append(block)
        if rest or not said:
            said.append({"role": self._role(message), "content": self._texts(rest)})
        return said

    def _role(self, message: Message) -> str:
        return "user" if message.role == "tool" else message.role

    def _assistant(self, blocks: Sequence[Block]) -> ChatMessage:
        thinking = JOIN.join(self.escape(b.text) for b in blocks if b.kind == "thinking" and b.text)
        text = self._texts([b for b in blocks if b.kind not in ("thinking", "tool_call")])
        calls = [self._call(b) for b in blocks if b.kind == "tool_call"]
        order = [
            ("thinking", "tool_call").index(b.kind) * 2 if b.kind in ("thinking", "tool_call") else 1 for b in blocks
        ]
        if order != sorted(order):
            self.fallbacks.add("reordered")
        takes = self.takes
        if thinking and not takes.thinking:
            self.fallbacks.add("thinking_in_text")
            text, thinking = f"<think>\n{thinking}\n</think>" + (JOIN + text if text else ""), ""
        if calls and not (takes.calls and (takes.parallel or len(calls) == 1) and (takes.calls_with_text or not text)):
            self.fallbacks.add("calls_in_text")
            spelled = "\n".join(f"<tool_call>\n{_json(c['function'])}\n</tool_call>" for c in calls)
            text, calls = f"{text}\n{spelled}" if text else spelled, []
        said: ChatMessage = {"role": "assistant", "content": text}
        if thinking:
            said["reasoning_content"] = thinking
        if calls:
            said["tool_calls"] = calls
        self.called |= {call["id"] for call in calls}
        return said

    def _call(self, block: Block) -> ToolCall:
        block = self.sampled.get(block, block)
        try:
            arguments: object = json.loads(block.text or "{}")
        except (ValueError, RecursionError):
            arguments = None
        if not isinstance(arguments, dict):
            self.fallbacks.add("invalid_arguments")
            arguments = self.escape(block.text)
        else:
            arguments = self._escaped(arguments)
        return {
            "type": "function",
            "id": block.id,
            "function": {"name": self.escape(block.name), "arguments": arguments},
        }

    def _escaped(self, value: object) -> object:
        if isinstance(value, str):
            return self.escape(value)
        if isinstance(value, dict):
            return {self.escape(str(k)): self._escaped(v) for k, v in value.items()}
        if isinstance(value, list):
            return [self._escaped(v) for v in value]
        return value

    def _result(self, block: Block) -> ChatMessage:
        text = self._texts([*([Block("text", block.text)] if block.text else []), *block.parts])
        if self.takes.results and (self.takes.orphans or block.id in self.called):
            return {"role": "tool", "content": text, "tool_call_id": block.id, "name": self.escape(block.name)}
        self.fallbacks.add("results_in_user")
        return user(f"<tool_response>\n{text}\n</tool_response>")

    def _texts(self, blocks: Iterable[Block]) -> str:
        return JOIN.join(t for t in map(self._text, blocks) if t)

    def _text(self, block: Block) -> str:
        if block.kind == "image":
            self.fallbacks.add("image")
            return f"[image {block.name}]" if block.name else "[image]"
        if block.kind == "tool_result":
            return self._texts(block.parts)
        return self.escape(block.text)

    def _schema(self, name: str, description: str, schema: str) -> ToolSchema:
        parameters = self._escaped(json.loads(schema or "{}"))
        function = {"name": self.escape(name), "description": self.escape(description), "parameters": parameters}
        return {"type": "function", "function": function}  # type: ignore[typeddict-item]


def turns(messages: Iterable[Message]) -> Iterator[Message]:
    """Neighbouring messages of the assistant as one, as the reply was that some wires send back item by item."""
    for role, group in groupby(messages, key=lambda m: m.role):
        if role == "assistant":
            yield Message(role, tuple(b for m in group for b in m.blocks))
        else:
            yield from group


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def merged(messages: Iterable[ChatMessage]) -> list[ChatMessage]:
    """Neighbouring user or system messages as one; tool results stay apart."""
    merged: list[ChatMessage] = []
    for message in messages:
        before = merged[-1] if merged else None
        if before is None or before["role"] != message["role"] or message["role"] in ("tool", "assistant"):
            merged.append(message)
        else:
            texts = (before["content"], message["content"])
            merged[-1] = {"role": message["role"], "content": JOIN.join(t for t in texts if t)}
    return merged
