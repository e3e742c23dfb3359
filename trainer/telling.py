"""A prefix in a chat template's words; a prefix that grows costs what it grew by.

    call 7   [system, user, a1, t1, a2, t2]            told whole
    call 8   [system, user, a1, t1, a2, t2, a3, t3]    told as [system, user, a2, t2] and the same with a3, t3 behind:
                                                       what the second has more is what call 8 has more than call 7

Templates render a message by itself and its neighbours, with three exceptions that the short telling keeps: what opens
the conversation, the last user message (thinking behind it is kept by many) and the last round. Where a new message may
change how old ones are told (a user message after thinking), or the short telling shows that it does, the prefix is
told whole. `confirm` tells the end of every line whole again and compares: a template of another kind is found out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from recorder.errors import RenderError
from recorder.message import Block, Exchange, Message
from trainer.conversation import Converter, merged, turns
from trainer.segments import Segments
from trainer.template import NOTHING, ChatMessage, ChatTemplate, Takes, ToolSchema, said

KEPT = 64  # ours: lines remembered; sessions seen have up to a dozen open at once


@dataclass(frozen=True, slots=True)
class Telling:
    """A prefix in a telling that the template accepts."""

    prompt: str
    """Rendered text, content escaped, up to where the model goes on."""
    near: Sequence[ChatMessage]
    """Messages that end as the prefix does: enough to tell what comes behind it."""
    near_tools: Sequence[ToolSchema]
    near_prompt: str
    takes: Takes
    fallbacks: frozenset[str]


@dataclass(slots=True, eq=False)
class _Line:
    """A prefix that later ones may grow from."""

    head: bytes
    prefix: tuple[Message, ...]
    messages: list[ChatMessage]
    tools: Sequence[ToolSchema]
    converter: Converter
    takes: Takes
    prompt: str
    base: str = ""
    """The prompt without what asks the model to go on; empty until the line grows."""
    grown: bool = False
    """It has grown since it was last told whole."""


@dataclass(slots=True, eq=False)
class Teller:
    template: ChatTemplate
    segments: Segments
    sampled: Mapping[Block, Block]
    """Tool calls as prefixes carry them -> as they were sampled."""
    linear: bool = True
    """False = every prefix is told whole."""
    _lines: list[_Line] = field(default_factory=list)
    _deceived: bool = False

    def tell(self, exchange: Exchange) -> Telling:
        """RenderError with the template's words where it accepts no telling."""
        line = self._line(exchange) if self.linear else None
        told = self._grow(line, exchange) if line else None
        if told is not None and line is not None:
            self._lines.remove(line)
            self._lines.append(line)
            return told
        return self._whole(exchange)

    def forget(self) -> None:
        """After `confirm`: no line is grown from any more."""
        self._lines.clear()

    def confirm(self) -> bool:
        """True = every prefix told by what it grew reads as when told whole. Else from now on all are told whole."""
        for line in self._lines:
            self._check(line)
        deceived, self._deceived = self._deceived, False
        if deceived:
            self.linear = False
            self._lines.clear()
        return not deceived

    def _whole(self, exchange: Exchange) -> Telling:
        """The first telling that the template accepts; else its words about the first one."""
        takes = self.template.takes
        refused: RenderError | None = None
        for shown, user_first in ((takes, False), (takes, True), (replace(NOTHING, system=takes.system), True)):
            converter = Converter(shown, self.segments.escape, self.sampled)
            conversation = converter.conversation(exchange.head, exchange.messages, user_first=user_first)
            messages, tools = conversation.messages, conversation.tools
            try:
                prompt = self.template.text(messages, tools=tools, generate=True)
            except RenderError as e:
                refused = refused or e
                continue
            if self.linear:
                line = _Line(exchange.head.digest, exchange.messages, [*messages], tools, converter, shown, prompt)
                self._lines.append(line)
                if len(self._lines) > KEPT:
                    self._check(self._lines.pop(0))
            return Telling(prompt, messages, tools, prompt, shown, conversation.fallbacks)
        assert refused is not None
        raise refused

    def _line(self, exchange: Exchange) -> _Line | None:
        """The longest line that the exchange's prefix grew from."""
        found = None
        for line in self._lines:
            longer = found is None or len(line.prefix) > len(found.prefix)
            if longer and line.head == exchange.head.digest and exchange.messages[: len(line.prefix)] == line.prefix:
                found = line
        return found

    def _grow(self, line: _Line, exchange: Exchange) -> Telling | None:
        """None = it must be told whole."""
        converter = replace(line.converter, fallbacks=set(line.converter.fallbacks), called=set(line.converter.called))
        tail = exchange.messages[len(line.prefix) :]
        new = merged(m for message in turns(tail) for m in converter.say(message))
        if not line.messages or line.messages[-1]["role"] == "system" or _joins(line.messages[-1], new):
            return None
        if any(m["role"] != "tool" and m["role"] != "assistant" for m in new) and _thinks(line.messages):
            return None
        near, tools = _near(line.messages), line.tools[:1]
        try:
            before = self.template.text(near, tools=tools)
            after = self.template.text([*near, *new], tools=tools) if new else before
            near_prompt = self.template.text([*near, *new], tools=tools, generate=True)
            asks = "" if line.base else self.template.text(near, tools=tools, generate=True).removeprefix(before)
        except RenderError:
            return None
        base = line.base or (line.prompt.removesuffix(asks) if asks and line.prompt.endswith(asks) else "")
        if not base or not after.startswith(before) or not near_prompt.startswith(after):
            return None
        line.base = base + after[len(before) :]
        line.prompt = line.base + near_prompt[len(after) :]
        line.prefix, line.converter, line.grown = exchange.messages, converter, True
        line.messages += new
        fallbacks = frozenset(converter.fallbacks)
        return Telling(line.prompt, [*near, *new], tools, near_prompt, line.takes, fallbacks)

    def _check(self, line: _Line) -> None:
        if not line.grown:
            return
        line.grown = False
        try:
            whole = self.template.text(line.messages, tools=line.tools, generate=True)
        except RenderError:
            whole = ""
        self._deceived = self._deceived or whole != line.prompt


def _joins(last: ChatMessage, new: Sequence[ChatMessage]) -> bool:
    """The new messages would have been merged with the last one."""
    return bool(new) and last["role"] == new[0]["role"] != "tool"


def _thinks(messages: Sequence[ChatMessage]) -> bool:
    """Some turn behind the last user message has thinking, which a further one may make the template drop."""
    for message in reversed(messages):
        if message["role"] == "user":
            return False
        if "reasoning_content" in message or "<think>" in message["content"]:
            return True
    return False


def _near(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """What opens the conversation, the last user message, the last round."""
    opening = next((i for i, m in enumerate(messages) if m["role"] != "system"), len(messages) - 1)
    last_user = next((i for i in range(len(messages) - 1, -1, -1) if messages[i]["role"] == "user"), opening)
    last_turn = next((i for i in range(len(messages) - 1, -1, -1) if messages[i]["role"] == "assistant"), last_user)
    wanted = sorted({*range(opening + 1), last_user, *range(max(last_turn, last_user), len(messages)), last_turn})
    near: list[ChatMessage] = []
    for index in wanted:
        if near and near[-1]["role"] == "user" == messages[index]["role"]:
            near.append(said("yes"))
        near.append(messages[index])
    return near
