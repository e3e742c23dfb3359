"""What the model could see, in one form for every wire format, and a content hash for it.

Messages stand one to one for the wire's own items (an Anthropic message, a chat message, a Responses input item), so
that a count of leading messages means the same in every tool. What a model cannot see (cache_control, billing blocks,
signatures, item ids) is left out by the rules named in `recorder.canonical`.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Literal

Role = Literal["system", "user", "assistant", "tool"]
"""`developer` is read as system. `tool` is chat's own role; Anthropic's tool results ride in user messages."""

BlockKind = Literal["text", "thinking", "tool_call", "tool_result", "image", "other"]


@dataclass(frozen=True, slots=True)
class Block:
    """One piece of content.

    text         text
    thinking     text = the reasoning the client got; empty where the server hid it
    tool_call    name, id, text = arguments as JSON (canonical in prefixes; as sampled in replies, perhaps invalid)
    tool_result  id, parts = the content (text, images), is_error; name where the wire gives it
    image        text = content hash of the data or the URL; name = media type
    other        text = canonical JSON of a block this table has no word for; name = its wire type
    """

    kind: BlockKind
    text: str = ""
    name: str = ""
    id: str = ""
    parts: tuple["Block", ...] = ()
    is_error: bool = False

    @property
    def size_chars(self) -> int:
        """Characters of visible content, parts included."""
        return len(self.text) + len(self.name) + sum(p.size_chars for p in self.parts)

    @property
    def plain(self) -> str:
        """Visible text, parts joined by newlines."""
        return "\n".join((self.text, *(p.plain for p in self.parts))) if self.parts else self.text


def _fields(block: Block, out: list[bytes]) -> None:
    for field in (block.kind, block.text, block.name, block.id, "1" if block.is_error else ""):
        data = field.encode("utf-8", "surrogatepass")
        out.append(len(data).to_bytes(8, "little"))
        out.append(data)
    out.append(len(block.parts).to_bytes(8, "little"))
    for part in block.parts:
        _fields(part, out)


def block_hash(block: Block) -> bytes:
    """16 bytes of BLAKE2b over kind, text, name, id, is_error and parts, each length-prefixed."""
    out = [b"block\0"]
    _fields(block, out)
    return blake2b(b"".join(out), digest_size=16).digest()  # one call: ten small updates cost four times this


@dataclass(frozen=True)
class Message:
    role: Role
    blocks: tuple[Block, ...]

    @cached_property
    def block_hashes(self) -> tuple[bytes, ...]:
        return tuple(block_hash(b) for b in self.blocks)

    @cached_property
    def digest(self) -> bytes:
        """16 bytes; equal content and role give equal digests, whatever the wire format."""
        h = blake2b(b"message\0" + self.role.encode() + b"\0", digest_size=16)
        for b in self.block_hashes:
            h.update(b)
        return h.digest()

    @property
    def id(self) -> str:
        """Tagged content hash, `b2:` and 32 hex digits."""
        return "b2:" + self.digest.hex()

    @property
    def size_chars(self) -> int:
        return sum(b.size_chars for b in self.blocks)

    @property
    def plain(self) -> str:
        return "\n".join(b.plain for b in self.blocks)


def prefix_hash(parent: bytes, message: bytes) -> bytes:
    """Id of a node of the persistent trie: tagged hash of the parent's id and the message's digest."""
    return blake2b(b"prefix\0" + parent + message, digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    description: str
    schema: str
    """JSON schema of the arguments, keys sorted."""


@dataclass(frozen=True)
class Head:
    """What stands before the messages."""

    model: str
    system: tuple[Block, ...]
    tools: tuple[Tool, ...]

    @cached_property
    def digest(self) -> bytes:
        """16 bytes over system and tools; the model's name is not content."""
        h = blake2b(b"head\0", digest_size=16)
        for b in self.system:
            h.update(block_hash(b))
        for t in self.tools:
            for field in (t.name, t.description, t.schema):
                data = field.encode("utf-8", "surrogatepass")
                h.update(len(data).to_bytes(8, "little") + data)
        return h.digest()


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the server reported them; None = not reported."""

    input: int | None = None
    """Uncached input tokens, as Anthropic counts; OpenAI's cached share is subtracted."""
    output: int | None = None
    cache_read: int | None = None
    cache_write: int | None = None


@dataclass(frozen=True, slots=True)
class Served:
    """Token identity given by the engine itself (vLLM `return_token_ids`, our gateway)."""

    prompt_ids: Sequence[int] | None
    """An array after construction: four bytes an id, for every call of a session serves them all again."""
    completion_ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    """Nats, one per completion token; None = the engine gave none, not 0."""

    def __post_init__(self) -> None:
        if self.prompt_ids is not None:
            object.__setattr__(self, "prompt_ids", array("i", self.prompt_ids))


@dataclass(frozen=True, slots=True)
class Reply:
    """What the model sampled, as far as it arrived."""

    message: Message
    stop_reason: str
    """The wire's own word (end_turn, tool_use, stop, length, ...); empty = never said."""
    complete: bool
    """The stream reached its own end marker without an error event."""
    id: str = ""
    """The server's id of this reply (msg_..., chatcmpl-..., resp_...)."""
    usage: Usage = Usage()
    error: str = ""
    """The error event's type and text, where there was one."""
    server_edits: tuple[str, ...] = ()
    """Edits the server says it made to the context before sampling (applied_edits types, `compaction`)."""
    served: Served | None = None
    notes: tuple[str, ...] = ()
    """What the reader set aside: choices beside the first, a sample given up for a second start, broken events."""


@dataclass(frozen=True, slots=True)
class Hints:
    """What headers and ids say about who speaks; empty = not said. Evidence, not content."""

    harness: str = ""
    """claude-code | opencode | codex | qwen-code | ... from the user agent."""
    session: str = ""
    parent_session: str = ""
    agent: str = ""
    """Id of a subagent; empty = the main thread or not said."""
    parent_agent: str = ""
    request_class: str = ""
    """Claude Code: main | subagent | compaction | auxiliary."""
    compaction: str = ""
    """Claude Code, on the summary request: auto | manual | reactive."""
    context_compacted: str = ""
    """Claude Code, on the first request after a swap: auto | manual | reactive."""
    previous_id: str = ""
    """Id of the reply that came before in this thread (previous_message_id, previous_response_id)."""


CallKind = Literal["generate", "count_tokens", "warmup"]


@dataclass(frozen=True, slots=True)
class Exchange:
    """A call's meaning: parsed once from its bytes, then trusted."""

    wire: str
    """anthropic | openai_chat | openai_responses | gemini | bedrock."""
    kind: CallKind
    """warmup = the wire says that no reply is to be sampled (Responses `generate: false`)."""
    head: Head
    messages: tuple[Message, ...]
    """The prefix as sent. With `previous_response_id` only the new items: `treebuilder.lineage` rebuilds the rest."""
    reply: Reply | None
    """None = no readable byte of a reply arrived."""
    hints: Hints
