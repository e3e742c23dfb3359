"""Real traffic of real harnesses: every labelled call is read, counted as its label says, and survives damage."""

import json
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, takewhile
from pathlib import Path

import pytest

from recorder import canonical
from recorder.call import Call
from recorder.encoding import Decoder
from recorder.importing import read_har
from recorder.message import Exchange, Served
from recorder.wire import Opaque, read, reply_reader

CAPTURES = Path(__file__).parent.parent / "captures"
LABELS = json.loads((CAPTURES / "labels.json").read_text())
NAMES = sorted(str(p.relative_to(CAPTURES).with_suffix("")) for p in CAPTURES.glob("*/*.har"))
KINDS = {"count": "count_tokens", "warmup": "warmup"}


def calls(name: str) -> Iterator[tuple[str, Call]]:
    for call in read_har(CAPTURES / f"{name}.har"):
        yield call.source.partition("#")[2], call


@pytest.mark.parametrize("name", NAMES)
def test_every_labelled_call_has_the_items_session_and_kind_of_its_label(name: str) -> None:
    got = {entry: read(call) for entry, call in calls(name)}
    for row in LABELS[name]:
        exchange = got[row["entry"]]
        assert isinstance(exchange, Exchange), (row, exchange)
        assert len(exchange.messages) == row["items"], row
        assert exchange.kind == KINDS.get(row["lane"], "generate"), row
        if row["session"] != "?":
            assert exchange.hints.session == row["session"], row
    labelled = {row["entry"] for row in LABELS[name]}
    assert all(isinstance(x, Opaque) for entry, x in got.items() if entry not in labelled)


@pytest.mark.parametrize("name", NAMES)
def test_as_many_leading_messages_are_shared_as_the_label_says(name: str) -> None:
    """Messages that are equal to the model are one object: what cosmetic changes leave different would show here."""
    got = {entry: x for entry, call in calls(name) if isinstance(x := read(call), Exchange)}
    before: dict[tuple[str, str], Exchange] = {}
    for row in LABELS[name]:
        exchange, key = got[row["entry"]], (row["session"], row["lane"])
        if "prefix" in row and row["session"] != "?" and key in before:
            pairs = zip(before[key].messages, exchange.messages, strict=False)
            shared = sum(1 for _ in takewhile(lambda pair: pair[0] is pair[1], pairs))
            assert shared == row["prefix"], row
        before[key] = exchange


def test_what_a_reply_says_is_found_in_the_next_request_as_the_client_echoes_it() -> None:
    found = missed = 0
    for name in (
        "claude-code/multiturn",
        "opencode/tools_anthropic_thinking",
        "opencode/tools_chat",
        "codex/codex_proxy",
    ):
        exchanges = [x for _, call in calls(name) if isinstance(x := read(call), Exchange) and x.head.tools]
        for now, after in pairwise(exchanges):
            if now.reply is None or len(after.messages) <= len(now.messages):
                continue
            echoed = {block for message in after.messages[len(now.messages) :] for block in message.blocks}
            for block in now.reply.message.blocks:
                found += canonical.echo(block) in echoed
                missed += canonical.echo(block) not in echoed
    assert missed <= 2  # an Edit call that gained `replace_all: false`, and a name that is no tool
    assert found > 50


@pytest.mark.parametrize(
    ("name", "entry", "complete", "error"),
    [
        ("claude-code/errors_429", "003", False, "rate_limit_error: slow down"),
        ("claude-code/errors_cut", "003", False, ""),
        ("claude-code/errors_sseerr", "003", False, "overloaded_error: Overloaded"),
        ("claude-code/errors_sseerr", "004", True, ""),
        ("claude-code/gzip_response", "003", True, ""),
    ],
)
def test_errors_cuts_and_compressed_replies_of_claude_code(name: str, entry: str, complete: bool, error: str) -> None:
    exchange = read(dict(calls(name))[entry])
    assert isinstance(exchange, Exchange)
    assert exchange.reply is not None
    assert (exchange.reply.complete, exchange.reply.error) == (complete, error)
    assert exchange.hints.harness == "claude-code"


def test_a_compressed_stream_reads_the_same_byte_by_byte() -> None:
    call = dict(calls("claude-code/gzip_response"))["003"]
    whole = read(call)
    decoder, reader = Decoder("gzip"), reply_reader("anthropic")
    for i in range(len(call.response_body)):
        reader.feed(decoder.feed(call.response_body[i : i + 1]))
    reader.feed(decoder.finish())
    assert isinstance(whole, Exchange)
    assert reader.finish() == whole.reply
    assert whole.reply is not None
    assert whole.reply.message.plain == "Hello, gzip stream."


def test_a_refused_websocket_handshake_is_no_call() -> None:
    refused = [x for _, call in calls("codex/codex_proxy") if isinstance(x := read(call), Opaque)]
    assert all("handshake" in x.reason for x in refused)


def mutants(body: bytes, rng: random.Random) -> Iterator[bytes]:
    yield body[: rng.randrange(len(body) + 1)]
    yield body[rng.randrange(len(body) + 1) :]
    for _ in range(3):
        damaged = bytearray(body)
        for _ in range(rng.randrange(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.choice(b'{}[]",:0n\\\x00\xff ')
        yield bytes(damaged)
    old, new = rng.choice(
        ((b'"text"', b'"type"'), (b"{", b"["), (b'":"', b'":null,"x":"'), (b'"', b"1"), (b"[", b"3,["))
    )
    yield body.replace(old, new, rng.randrange(1, 30))


@pytest.mark.parametrize("name", ["claude-code/errors_429", "codex/codex_proxy_websocket", "qwen/qwen_agent"])
def test_no_damage_to_real_bodies_makes_read_raise(name: str) -> None:
    rng = random.Random(7)
    outcomes = set()
    for _, call in calls(name):
        for body in mutants(call.request_body, rng):
            outcomes.add(type(read(replace(call, request_body=body))))
        for body in mutants(call.response_body, rng) if call.response_body else ():
            got = read(replace(call, response_body=body))
            assert isinstance(got, Exchange)  # a damaged reply never hides the request
            assert got.reply is None or not isinstance(got.reply.served, Served)
    assert outcomes == {Exchange, Opaque}


JUNK: tuple[object, ...] = (
    None,
    1,
    -1,
    2**80,
    1.5,
    True,
    "",
    "x",
    "\ud800",
    [],
    {},
    [1],
    [[]],
    {"type": "text"},
    "tool_use",
)


def shaken(value: object, rng: random.Random, chance: float) -> object:
    """The same JSON with some values replaced and some keys lost."""
    if rng.random() < chance:
        return rng.choice(JUNK)
    if isinstance(value, dict):
        return {k: shaken(v, rng, chance) for k, v in value.items() if rng.random() > chance}
    return [shaken(v, rng, chance) for v in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", ["claude-code/errors_sseerr", "codex/codex_proxy_websocket", "qwen/qwen_agent"])
def test_no_change_to_the_shape_of_real_bodies_makes_read_raise(name: str) -> None:
    rng = random.Random(7)
    for _, call in calls(name):
        body = json.loads(call.request_body)
        events = [json.loads(e) for e in re.findall(rb"\{.*\}", call.response_body) if e.startswith(b'{"')]
        for chance in (0.003, 0.01, 0.03) * 3:
            sent = b"".join(b"data: " + json.dumps(shaken(e, rng, chance)).encode() + b"\n\n" for e in events)
            changed = json.dumps(shaken(body, rng, chance / 3)).encode()
            got = read(replace(call, request_body=changed, response_body=sent))
            if isinstance(got, Exchange):
                assert len(got.head.digest) == 16
                assert all(len(m.digest) == 16 for m in got.messages)
