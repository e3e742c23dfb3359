"""A reply as a stream of pieces: what an engine samples, before any wire format gives it bytes.

    Start  Open Text.. Close  Open Text.. Close  Stop        a whole reply
    Start  Open Text..  Fault                                a reply that failed on the way

An engine that samples token by token yields pieces as they come; one that knows the whole reply uses `pieces()`.
"""

from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, get_args

from recorder.message import Block, Usage

StopReason = Literal[
    "end_turn", "tool_use", "max_tokens", "stop_sequence", "refusal", "pause_turn", "model_context_window_exceeded"
]
"""Anthropic's words; the other formats translate them."""

STOP_REASONS: tuple[StopReason, ...] = get_args(StopReason)


@dataclass(frozen=True, slots=True)
class Start:
    usage: Usage
    """What is known of the prompt; `output` is not known yet."""


@dataclass(frozen=True, slots=True)
class Open:
    block: Block
    """Kind, name and id of the block that begins; its text comes in `Text` pieces."""


@dataclass(frozen=True, slots=True)
class Text:
    text: str
    """More of the open block: text, reasoning, or arguments as JSON. Never empty."""


@dataclass(frozen=True, slots=True)
class Close:
    pass


@dataclass(frozen=True, slots=True)
class Stop:
    reason: StopReason
    usage: Usage


@dataclass(frozen=True, slots=True)
class Fault:
    """An error told inside a stream whose status was 200."""

    type: str
    message: str


Piece = Start | Open | Text | Close | Stop | Fault


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole reply."""

    blocks: tuple[Block, ...]
    """text, thinking and tool_call blocks, in order."""
    stop: StopReason
    usage: Usage


@dataclass(frozen=True, slots=True)
class Pace:
    """How the bytes of a reply travel; an event is one frame of the wire format."""

    first_delay_s: float = 0.0
    """Before the first byte, the status line included."""
    delay_s: float = 0.0
    """Before every further event."""
    cut_after: int | None = None
    """Events after which the connection is dropped; None = never. A reply that is no stream is
    cut at half its bytes."""


AT_ONCE = Pace()


@dataclass(frozen=True, slots=True)
class Refusal:
    """The request gets an HTTP error instead of a reply."""

    status: int
    type: str
    message: str
    retry_after_s: float | None = None
    """Sent as the retry-after header; None = no such header."""
    first_delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Answer:
    pieces: AsyncIterator[Piece]
    pace: Pace = AT_ONCE


def cut_text(text: str, size_chars: int) -> Iterator[str]:
    return (text[i : i + size_chars] for i in range(0, len(text), size_chars))


def pieces(completion: Completion, *, chunk_chars: int) -> Iterator[Piece]:
    yield Start(completion.usage)
    for block in completion.blocks:
        yield Open(replace(block, text=""))
        yield from (Text(part) for part in cut_text(block.text, chunk_chars))
        yield Close()
    yield Stop(completion.stop, completion.usage)


async def replay(source: Iterable[Piece]) -> AsyncIterator[Piece]:
    for piece in source:
        yield piece


async def collect(source: AsyncIterator[Piece]) -> Completion | Fault:
    """Read a whole reply; a fault on the way is the result."""
    blocks: list[Block] = []
    usage = Usage()
    reason: StopReason = "end_turn"
    text: list[str] = []
    async for piece in source:
        match piece:
            case Start(usage=start):
                usage = start
            case Open(block=block):
                blocks.append(block)
                text = []
            case Text(text=part):
                text.append(part)
            case Close():
                opened = blocks[-1]
                blocks[-1] = Block(opened.kind, "".join(text), opened.name, opened.id)
            case Stop(reason=reason, usage=usage):
                pass
            case Fault():
                return piece
    return Completion(tuple(blocks), reason, usage)
