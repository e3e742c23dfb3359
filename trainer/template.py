"""A chat template as it is: what it takes is found by rendering small probes, not by reading its name.

Whatever a template refuses, drops or has no words for is said in text instead (`trainer.conversation`).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NotRequired, TypedDict

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from recorder.errors import RenderError


class FunctionCall(TypedDict):
    name: str
    arguments: object
    """The parsed JSON; a string where the model sampled none."""


class ToolCall(TypedDict):
    type: Literal["function"]
    id: str
    function: FunctionCall


class ChatMessage(TypedDict):
    """A message as chat templates read it."""

    role: str
    content: str
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[ToolCall]]
    tool_call_id: NotRequired[str]
    name: NotRequired[str]


class FunctionSchema(TypedDict):
    name: str
    description: str
    parameters: object


class ToolSchema(TypedDict):
    type: Literal["function"]
    function: FunctionSchema


@dataclass(frozen=True, slots=True)
class Takes:
    """What a template shows of a conversation, each found by a probe."""

    system: bool
    later_system: bool
    """A system message after the first turn."""
    tools: bool
    thinking: bool
    """`reasoning_content`, on the last turn at least."""
    calls: bool
    parallel: bool
    """Two tool calls in one turn."""
    calls_with_text: bool
    """A turn with both text and a tool call shows both."""
    results: bool
    """Role `tool`, after the call it answers."""
    orphans: bool
    """Role `tool` without a call before it."""


NOTHING = Takes(*(False,) * 9)

_WORD = "probeword"


def user(content: str) -> ChatMessage:
    return {"role": "user", "content": content}


def said(content: str, *calls: str, thinking: str = "") -> ChatMessage:
    message: ChatMessage = {"role": "assistant", "content": content}
    if thinking:
        message["reasoning_content"] = thinking
    if calls:
        message["tool_calls"] = [
            {"type": "function", "id": f"call{i:05}", "function": {"name": name, "arguments": {"path": f"{_WORD}{i}"}}}
            for i, name in enumerate(calls)
        ]
    return message


def result(content: str, *, index: int = 0) -> ChatMessage:
    return {"role": "tool", "content": content, "tool_call_id": f"call{index:05}", "name": "look"}


class ChatTemplate:
    """`text` renders; `takes` says what is shown. RenderError where the tokenizer has no template."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        if not getattr(tokenizer, "chat_template", None):
            name = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
            raise RenderError(f"tokenizer {name}: expected one with a chat template, got none; name a chat model's")
        self.takes = self._probe()

    def text(self, messages: Sequence[ChatMessage], *, tools: Sequence[ToolSchema] = (), generate: bool = False) -> str:
        """The template's text; `generate` ends it where the model is to go on. RenderError with its own words."""
        try:
            rendered = self._tokenizer.apply_chat_template(
                list(messages), tools=list(tools) or None, add_generation_prompt=generate, tokenize=False
            )
        except (TemplateError, TypeError, ValueError, KeyError, AttributeError, IndexError) as e:
            words = re.sub(r"\s+", " ", str(e)).strip()
            raise RenderError(f"chat template: expected to render {len(messages)} messages, it says: {words}") from e
        assert isinstance(rendered, str)
        return rendered

    def _shows(self, words: Sequence[str], messages: Sequence[ChatMessage], tools: Sequence[ToolSchema] = ()) -> bool:
        try:
            text = self.text(messages, tools=tools)
        except RenderError:
            return False
        return all(word in text for word in words)

    def _probe(self) -> Takes:
        tool: ToolSchema = {
            "type": "function",
            "function": {"name": "look", "description": _WORD, "parameters": {"type": "object", "properties": {}}},
        }
        system: ChatMessage = {"role": "system", "content": "rules"}
        asked, told, later = user("question"), said("answer"), ChatMessage(role="system", content=_WORD)
        both = [said("", "look", "peek"), result("seen"), result("glimpsed", index=1)]
        return Takes(
            system=self._shows(("rules", "question"), [system, asked]),
            later_system=self._shows((_WORD, "again"), [system, asked, told, later, user("again")]),
            tools=self._shows(("look", _WORD), [system, asked], [tool]),
            thinking=self._shows(("pondering", "answer"), [asked, said("answer", thinking="pondering")]),
            calls=self._shows(("look", _WORD + "0"), [asked, said("", "look"), result("seen")]),
            parallel=self._shows(("look", "peek", _WORD + "0", _WORD + "1"), [asked, *both]),
            calls_with_text=self._shows(("answer", "look"), [asked, said("answer", "look"), result("seen")]),
            results=self._shows(("seen",), [asked, said("", "look"), result("seen")]),
            orphans=self._shows(("seen",), [asked, told, result("seen")]),
        )
