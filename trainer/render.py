"""A call as token ids: the ids its engine served, else the chat template's text, cut exactly where sampling began.

    prompt       <|im_start|>user\\nhi<|im_end|>\\n<|im_start|>assistant\\n   the template, with a generation prompt
    completion   hello<|im_end|>                                            the rest of the turn up to its stop token

The completion is read off a rendering that goes on behind the reply (with a tool's answer), because there the turn
stands as later prompts will repeat it; where a template refuses that, off a rendering that ends with the reply. If the
prompt is no prefix of either, the call is refused with the reason: a split is exact or there is none.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from transformers import PreTrainedTokenizerBase

from recorder.canonical import echo
from recorder.errors import RenderError
from recorder.message import Block, Exchange, Reply, Served
from trainer.conversation import Converter
from trainer.sample import Floats, Ids
from trainer.segments import Segments
from trainer.served import Cause, Comparison, Difference
from trainer.telling import Teller, Telling
from trainer.template import ChatMessage, ChatTemplate, Takes, result, said, user

CUT_SHORT = frozenset(("max_tokens", "length", "max_output_tokens", "model_context_window_exceeded", "MAX_TOKENS"))
"""Stop reasons, in the wires' own words, of a reply that has no stop token."""

_AFTER = "probeafterwards"


@dataclass(frozen=True, slots=True, eq=False)
class Rendered:
    """A call in tokens."""

    prompt_ids: Ids
    completion_ids: Ids
    """The sampled span with its stop token, if it came to one; empty = nothing was sampled."""
    logprobs: Floats | None
    """Nats, one per completion token, as served; None = not served."""
    grade: Literal["served", "rendered"]
    """served = all ids are the engine's own; rendered = at least the prompt is the template's."""
    fallbacks: frozenset[str]
    """What the template had no words for (`trainer.conversation`)."""
    differs: Difference | None = None
    """Where the served ids first differ from the template's; None = nowhere, or none were served."""


class Renderer:
    """Renders calls for one tokenizer; what it has tokenised once it looks up."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self.template = ChatTemplate(tokenizer)
        self.segments = Segments(tokenizer)
        self._sampled: dict[Block, Block] = {}
        self._comparison = Comparison(tokenizer.decode)
        self._teller = Teller(self.template, self.segments, self._sampled)
        self._stop = {calls: self._find_stop(calls=calls) for calls in (False, True)}

    def render(self, exchange: Exchange) -> Rendered:
        """Prompt and completion of a call. RenderError says why there is no exact split."""
        reply = exchange.reply
        if reply is not None:
            for block in reply.message.blocks:
                if block.kind == "tool_call":
                    self._sampled.setdefault(echo(block), block)
        served = reply.served if reply else None
        if served is not None and served.prompt_ids is not None:
            got = self._served(served, served.prompt_ids)
            return replace(got, differs=self._differs(got, exchange))
        told = self._teller.tell(exchange)
        prompt_ids = self.segments.encode(told.prompt)
        if served is not None:
            got = self._served(served, ())
            differs = self._completion_differs(got, told, reply)
            return replace(got, prompt_ids=prompt_ids, grade="rendered", fallbacks=told.fallbacks, differs=differs)
        if reply is None or not (reply.message.blocks or reply.complete):
            return Rendered(prompt_ids, prompt_ids[:0], None, "rendered", told.fallbacks)
        ids, fallbacks = self._completion_ids(told, reply)
        return Rendered(prompt_ids, ids, None, "rendered", told.fallbacks | fallbacks)

    def confirm(self) -> bool:
        """After the last call: True = all prompts are the template's own text. Else render the calls again."""
        return self._teller.confirm()

    def forget(self) -> None:
        """What comes next is rendered as if nothing had come before; between families, so that memory stays flat."""
        self._sampled.clear()
        self._comparison.forget()
        self._teller.forget()
        self.segments.forget()

    def count(self, reply: Reply) -> int:
        """Tokens of a reply whose call is not rendered: the served ids, else its blocks' names and texts alone."""
        if reply.served is not None:
            return len(reply.served.completion_ids)
        texts = [text for block in reply.message.blocks for text in (block.name, block.text) if text]
        return sum(len(self.segments.encode_after("", self.segments.escape(text))) for text in texts)

    def _served(self, served: Served, prompt_ids: Sequence[int]) -> Rendered:
        prompt, completion = (np.array(ids, dtype=np.int32) for ids in (prompt_ids, served.completion_ids))
        size = len(self.tokenizer)
        beyond = next((int(ids[ids >= size][0]) for ids in (prompt, completion) if (ids >= size).any()), None)
        if beyond is not None:
            raise RenderError(f"served ids: expected ids below {size}, the tokenizer's size, got {beyond}")
        logprobs = None if served.logprobs is None else np.array(served.logprobs, dtype=np.float64)
        return Rendered(prompt, completion, logprobs, "served", frozenset())

    def _differs(self, got: Rendered, exchange: Exchange) -> Difference | None:
        try:
            told = self._teller.tell(exchange)
        except RenderError as e:
            return Difference("prompt", 0, Cause.TEMPLATE, str(e))
        prompt_ids = self.segments.encode(told.prompt)
        found = self._comparison.prompt(got.prompt_ids, prompt_ids, exchange.messages)
        return found or self._completion_differs(got, told, exchange.reply)

    def _completion_differs(self, got: Rendered, told: Telling, reply: Reply | None) -> Difference | None:
        assert reply is not None
        try:
            ids, _ = self._completion_ids(told, reply)
        except RenderError as e:
            return Difference("completion", 0, Cause.TEMPLATE, str(e))
        return self._comparison.completion(got.completion_ids, ids, reply.message)

    def _completion_ids(self, told: Telling, reply: Reply) -> tuple[Ids, set[str]]:
        """The template's, and what it had no words for."""
        converter = Converter(told.takes, self.segments.escape)
        (spoken,) = converter.say(reply.message)
        return self.segments.encode_after(told.prompt, self._completion(told, spoken, reply)), converter.fallbacks

    def _completion(self, told: Telling, spoken: ChatMessage, reply: Reply) -> str:
        """The sampled text, escaped: the turn behind the prompt with its stop token, or up to where it was cut."""
        stop = self._stop["tool_calls" in spoken]
        if not stop:
            raise RenderError("chat template: expected a special token at the end of an assistant turn, got none")
        reason = ""
        for behind in self._behind(told.takes, spoken):
            try:
                text = self.template.text([*told.near, spoken, *behind], tools=told.near_tools)
            except RenderError as e:
                reason = str(e)
                continue
            if not text.startswith(told.near_prompt):
                reason = _unlike(told.near_prompt, text)
                continue
            end = text.rfind(stop, len(told.near_prompt), text.rfind(_AFTER) if behind else len(text))
            turn = text[len(told.near_prompt) : max(end, len(told.near_prompt))]
            lost = _lost(turn, spoken)
            if not lost:
                return turn + stop if _ended(reply) else self._until_cut(turn, reply)
            reason = f"chat template: expected the whole reply in its turn, got none of its {lost}"
        raise RenderError(reason)

    def _behind(self, takes: Takes, spoken: ChatMessage) -> Iterator[list[ChatMessage]]:
        """What may stand behind a turn; a user's message makes many templates drop the turn's thinking."""
        if takes.results and (takes.orphans or "tool_calls" in spoken):
            yield [result(_AFTER)]
        if "reasoning_content" not in spoken:
            yield [user(_AFTER)]
        yield []

    def _until_cut(self, turn: str, reply: Reply) -> str:
        last = reply.message.blocks[-1]
        text = self.segments.escape(last.text)
        for ending in (text, text.strip()):
            if ending and (at := turn.rfind(ending)) >= 0 and (last.kind != "tool_call" or not _is_json(last.text)):
                return turn[: at + len(ending)]
        raise RenderError(
            f"chat template: expected to find where the reply was cut, its last {last.kind} reads otherwise"
        )

    def _find_stop(self, *, calls: bool) -> str:
        """The special token that ends an assistant's turn; empty = the template has none."""
        spoken = said("answer", *(["look"] if calls else []))
        try:
            text = self.template.text([user("question"), spoken])
        except RenderError:
            return ""
        found = self.segments.last_special(text, max(text.rfind("answer"), text.rfind("look"), 0))
        return text[slice(*found)] if found and not text[found[1] :].strip() else ""


def _ended(reply: Reply) -> bool:
    return reply.complete and reply.stop_reason not in CUT_SHORT


def _lost(turn: str, spoken: ChatMessage) -> str:
    """The first part of the reply that its rendered turn does not show; empty = all is there."""
    if spoken.get("reasoning_content", "").strip() not in turn:
        return "thinking"
    if spoken["content"].strip() not in turn:
        return "text"
    return next(("tool call" for c in spoken.get("tool_calls", []) if c["function"]["name"] not in turn), "")


def _unlike(prompt: str, text: str) -> str:
    at = next((i for i, (a, b) in enumerate(zip(prompt, text, strict=False)) if a != b), min(len(prompt), len(text)))
    got = f"{prompt[at:][:24]!r} where the turn has {text[at:][:24]!r}"
    return f"chat template: expected the prompt to start the rendered turn, got {got}"


def _is_json(text: str) -> bool:
    try:
        json.loads(text or "{}")
    except (ValueError, RecursionError):
        return False
    return True
