"""What the model cannot see: one named, versioned list of all that the wire modules leave out or fold together.

Two prefixes are the same to us when they are the same to the model. Everything below is evidence from live captures or
from the vendors' documentation; a change to what is left out changes every content hash, so `VERSION` goes up with it.
"""

import re
from dataclasses import dataclass, replace
from hashlib import blake2b

import orjson

from recorder.errors import WireError
from recorder.message import Block

VERSION = 1


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    reason: str
    drops: tuple[str, ...] = ()
    """Keys that the rule takes off a block, an item or a tool."""


RULES = (
    Rule("cache_control", "marks where the server may cache; the prompt is the same without it", ("cache_control",)),
    Rule("billing_block", "Claude Code's first system block, `x-anthropic-billing-header`, is for the accounts"),
    Rule(
        "signature",
        "proves to the server that reasoning is its own; changes with the key",
        ("signature", "thoughtSignature", "thought_signature"),
    ),
    Rule("encrypted_reasoning", "the server's own copy of reasoning; what it says is not ours", ("encrypted_content",)),
    Rule("item_id", "names an item for the client; `call_id` is what ties a result to a call", ("id",)),
    Rule("item_status", "says how far an item has come; in a prefix it always has", ("status",)),
    Rule(
        "passthrough", "the client's own notes on an item", ("internal_chat_message_metadata_passthrough", "metadata")
    ),
    Rule("citations", "point into text that stands in the context already", ("citations", "annotations", "logprobs")),
    Rule(
        "tool_flags",
        "how a tool's call is streamed, checked or loaded",
        ("eager_input_streaming", "strict", "defer_loading"),
    ),
    Rule(
        "request_settings",
        "sampling, limits, metadata, diagnostics, betas, output_config: beside the prompt, not in it",
    ),
    Rule("extra_keys", "keys of a message beside role and content (`output_config`, `extra`) are settings"),
    Rule("bare_string", "content as a string is one text block"),
    Rule("empty_text", "a text block without text adds nothing"),
    Rule("key_order", "the order of keys in a tool's input or schema, and 1.0 against 1, is the serialiser's choice"),
    Rule("developer_role", "`developer` is the newer word for `system`"),
    Rule("image_bytes", "inline data stands as its hash; equal data, equal hash"),
)

_DROPPED = frozenset(key for rule in RULES for key in rule.drops)
_ITEM_KEYS = frozenset(
    ("id", "status", "encrypted_content")
)  # an Anthropic block's own id and encrypted text are content
_BILLING = "x-anthropic-billing-header"
_INTEGRAL = re.compile(r"[0-9]\.0[,\]}]|[0-9]\.0$")


def _integral(value: object) -> object:
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, dict):
        return {key: _integral(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_integral(item) for item in value]
    return value


def loads(data: bytes | str) -> object:
    """JSON as orjson reads it, or as Python does where orjson is stricter (lone surrogates). ValueError if neither."""
    try:
        value: object = orjson.loads(data)
    except orjson.JSONDecodeError:
        import json  # rarely needed, and slow

        try:
            value = json.loads(data)
        except RecursionError:
            raise ValueError("nested too deep") from None
    return value


def dumps(value: object) -> str:
    """One form for every equal JSON value: keys sorted, no blanks, integral floats as integers (rule key_order)."""
    try:
        text = orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
        if _INTEGRAL.search(text):
            text = orjson.dumps(_integral(value), option=orjson.OPT_SORT_KEYS).decode()
    except TypeError:
        import json

        try:
            text = json.dumps(_integral(value), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        except RecursionError:
            raise WireError("expected JSON of sane depth, got more than a thousand levels") from None
    return text


def raw(value: object) -> str:
    """Arguments that should be a string, from servers that send an object or nothing."""
    return value if isinstance(value, str) else "" if value is None else dumps(value)


def arguments(text: str) -> str:
    """A tool call's arguments as they stand in a prefix: canonical JSON, `{}` for none; what is no JSON as it is."""
    if not text.strip():
        return "{}"
    try:
        return dumps(loads(text))
    except ValueError:
        return text


def echo(block: Block) -> Block:
    """A sampled block in the form in which a client's next request carries it."""
    return replace(block, text=arguments(block.text)) if block.kind == "tool_call" else block


def text(value: str) -> tuple[Block, ...]:
    """A bare string as blocks (rules bare_string, empty_text)."""
    return (Block("text", value),) if value else ()


def is_billing(block: Block) -> bool:
    return block.text.startswith(_BILLING)


def data_hash(data: str) -> str:
    """Name of inline data (rule image_bytes): `b2:` and 32 hex digits over its characters as sent."""
    return "b2:" + blake2b(data.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def visible(item: dict[str, object], *, item_keys: bool = False) -> dict[str, object]:
    """A block, tool or item without what the rules drop; `item_keys` also drops the Responses items' ids and status."""
    dropped = _DROPPED if item_keys else _DROPPED - _ITEM_KEYS
    return {key: value for key, value in item.items() if key not in dropped}
