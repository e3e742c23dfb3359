"""A script: what a scripted model says, turn by turn, as a JSON file.

    {"variables": ["cwd"],                                      names that {cwd} in texts and tool inputs stands for
     "turns": [{"text": "Reading.", "tools": [{"name": "Read", "input": {"file_path": "{cwd}/a.txt"}}]},
               {"text": "Done."}],
     "rules": [{"when": {"has_tools": false}, "turns": [{"text": "A title"}]}]}

Turns are played in order, separately for each conversation. The first rule that fits a request answers it from turns
of its own (its last turn repeats) and takes none of the main ones. When the main turns are used up the model says
"Done.", or with `"strict": true` answers 400.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from proxy.gateway.completion import AT_ONCE, Fault, Pace, Refusal, StopReason
from recorder.errors import ScriptError
from recorder.message import Usage

CHUNK_CHARS = 24
CHARS_PER_TOKEN = 4  # the usual rule of thumb for English


@dataclass(frozen=True, slots=True)
class ToolUse:
    name: str
    arguments: str
    """JSON, as the model samples it; placeholders not filled."""


@dataclass(frozen=True, slots=True)
class UsageRule:
    """What the reply says it cost; None = counted from sizes, four characters a token."""

    input: int | None = None
    output: int | None = None
    cache_read: int = 0
    cache_write: int = 0
    factor: float = 1.0
    """Times the counted input."""


@dataclass(frozen=True, slots=True)
class Turn:
    text: str = ""
    thinking: str = ""
    tools: tuple[ToolUse, ...] = ()
    stop: StopReason = "end_turn"
    usage: UsageRule = UsageRule()
    chunk_chars: int = CHUNK_CHARS
    pace: Pace = AT_ONCE
    error: Refusal | None = None
    """Sent instead of a reply."""
    stream_error: Fault | None = None
    """Sent inside the reply."""
    stream_error_after: int | None = None
    """Pieces of the reply before it; None = all but the end."""


@dataclass(frozen=True, slots=True)
class When:
    """Conditions that must all hold; None = any."""

    wire: str | None = None
    model: str | None = None
    """Part of the model's name."""
    has_tools: bool | None = None
    agent: bool | None = None
    """True = the headers name a subagent."""
    system: str | None = None
    """Part of the system text."""
    first_user: str | None = None
    """Part of the first user message's text."""
    last_user: str | None = None
    """Part of the last user message's text, tool results aside."""
    min_messages: int | None = None
    max_messages: int | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    when: When
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class Script:
    turns: tuple[Turn, ...]
    rules: tuple[Rule, ...] = ()
    variables: tuple[str, ...] = ()
    models: tuple[str, ...] = ("scripted",)
    strict: bool = False
    lanes: Literal["conversation", "one"] = "conversation"
    """one = all requests share one row of turns, for harnesses that send no session id and rewrite their history."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


_Seconds = Annotated[float, Field(ge=0)]
_Count = Annotated[int, Field(ge=0)]


class _Tool(_Strict):
    name: str
    input: dict[str, JsonValue] | str = {}  # a string is sent as it is: arguments that are no valid JSON


class _Usage(_Strict):
    input: _Count | Literal["size"] = "size"
    output: _Count | Literal["size"] = "size"
    cache_read: _Count = 0
    cache_write: _Count = 0
    factor: Annotated[float, Field(gt=0)] = 1.0


class _Error(_Strict):
    status: Annotated[int, Field(ge=400, le=599)]
    type: str
    message: str = ""
    retry_after_s: _Seconds | None = None


class _StreamError(_Strict):
    type: str
    message: str = ""
    after: _Count | None = None


class _Turn(_Strict):
    text: str = ""
    thinking: str = ""
    tools: list[_Tool] = []
    usage: _Usage | None = None
    stop: StopReason | None = None
    chunk: Annotated[int, Field(ge=1)] | None = None
    delay_s: _Seconds = 0.0
    first_delay_s: _Seconds = 0.0
    cut_after: _Count | None = None
    error: _Error | None = None
    stream_error: _StreamError | None = None
    repeat: Annotated[int, Field(ge=1)] = 1


class _When(_Strict):
    wire: Literal["anthropic", "openai_chat", "openai_responses"] | None = None
    model: str | None = None
    has_tools: bool | None = None
    agent: bool | None = None
    system: str | None = None
    first_user: str | None = None
    last_user: str | None = None
    min_messages: _Count | None = None
    max_messages: _Count | None = None


class _Rule(_Strict):
    when: _When
    turns: Annotated[list[_Turn], Field(min_length=1)]


class _Script(_Strict):
    turns: list[_Turn]
    rules: list[_Rule] = []
    variables: list[str] = []
    models: Annotated[list[str], Field(min_length=1)] = ["scripted"]
    strict: bool = False
    lanes: Literal["conversation", "one"] = "conversation"
    usage: _Usage = _Usage()
    chunk: Annotated[int, Field(ge=1)] = CHUNK_CHARS
    delay_s: _Seconds = 0.0
    comment: str = ""


def load(path: str | Path) -> Script:
    """Read a script file; ScriptError says what was expected, what was there and where."""
    try:
        text = Path(path).read_bytes()
    except OSError as e:
        raise ScriptError(f"script {path}: expected a readable file, got {e.strerror}") from e
    return parse(text, where=str(path))


def parse(text: bytes | str, *, where: str = "script") -> Script:
    try:
        data = json.loads(text)
    except ValueError as e:
        raise ScriptError(f"script {where}: expected JSON, got {e}") from e
    try:
        script = _Script.model_validate(data)
    except ValidationError as e:
        first = e.errors(include_url=False)[0]
        place = ".".join(str(p) for p in first["loc"]) or "top level"
        got = json.dumps(first["input"], default=repr)
        raise ScriptError(f"script {where}: at {place}: {first['msg']}, got {got[:80]}") from e
    return Script(
        turns=_turns(script.turns, script),
        rules=tuple(Rule(When(**r.when.model_dump()), _turns(r.turns, script)) for r in script.rules),
        variables=tuple(script.variables),
        models=tuple(script.models),
        strict=script.strict,
        lanes=script.lanes,
    )


def _turns(turns: list[_Turn], script: _Script) -> tuple[Turn, ...]:
    return tuple(_turn(t, script) for t in turns for _ in range(t.repeat))


def _turn(turn: _Turn, script: _Script) -> Turn:
    stream_error = turn.stream_error
    return Turn(
        text=turn.text,
        thinking=turn.thinking,
        tools=tuple(
            ToolUse(t.name, t.input if isinstance(t.input, str) else json.dumps(t.input, ensure_ascii=False))
            for t in turn.tools
        ),
        stop=turn.stop or ("tool_use" if turn.tools else "end_turn"),
        usage=_usage(turn.usage or script.usage),
        chunk_chars=turn.chunk or script.chunk,
        pace=Pace(turn.first_delay_s, turn.delay_s or script.delay_s, turn.cut_after),
        error=_refusal(turn.error, turn.first_delay_s) if turn.error else None,
        stream_error=Fault(stream_error.type, stream_error.message or stream_error.type) if stream_error else None,
        stream_error_after=stream_error.after if stream_error else None,
    )


def _refusal(error: _Error, first_delay_s: float) -> Refusal:
    return Refusal(error.status, error.type, error.message or error.type, error.retry_after_s, first_delay_s)


def _usage(usage: _Usage) -> UsageRule:
    return UsageRule(
        input=None if usage.input == "size" else usage.input,
        output=None if usage.output == "size" else usage.output,
        cache_read=usage.cache_read,
        cache_write=usage.cache_write,
        factor=usage.factor,
    )


def counted(rule: UsageRule, *, prompt_chars: int, reply_chars: int) -> Usage:
    """The usage a reply reports; a counted input has the cached shares taken out."""
    total = max(round(prompt_chars / CHARS_PER_TOKEN * rule.factor), 1)
    return Usage(
        input=max(total - rule.cache_read - rule.cache_write, 0) if rule.input is None else rule.input,
        output=max(reply_chars // CHARS_PER_TOKEN, 1) if rule.output is None else rule.output,
        cache_read=rule.cache_read,
        cache_write=rule.cache_write,
    )
