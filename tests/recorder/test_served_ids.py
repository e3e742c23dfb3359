"""Ids that an engine serves with every reply are stored once, whatever the session's length; every byte comes back."""

import json
import random
import sqlite3
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import databases
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from storecalls import CALL

from recorder import idruns
from recorder.call import Call
from recorder.message import Served
from recorder.store import Store
from recorder.wire import read
from recorder.wire.served import Gathered


def session(calls: int, *, first: int = 4000, more: int = 200, spaces: bool = True) -> Iterator[Call]:
    """Each prompt is the one before with 200 ids more, half of them sampled; ids of a vocabulary like Qwen's."""
    rng = random.Random(7)
    ids = [rng.randrange(151_000) for _ in range(first)]
    messages = [{"role": "user", "content": "q"}]
    for number in range(calls):
        sampled = [rng.randrange(151_000) for _ in range(more // 2)]
        start = {"id": f"c{number}", "prompt_token_ids": ids, "choices": []}
        chunks = [start, *({"choices": [{"index": 0, "delta": {"content": "x"}, "token_ids": [i]}]} for i in sampled)]
        separators = None if spaces else (",", ":")
        body = b"".join(b"data: " + json.dumps(c, separators=separators).encode() + b"\n\n" for c in chunks)
        request = json.dumps({"model": "m", "stream": True, "messages": messages}).encode()
        yield replace(
            CALL,
            url="http://127.0.0.1/v1/chat/completions",
            request_body=request,
            response_body=body + b"data: [DONE]\n\n",
            run=f"run {first}",
        )
        ids = [*ids, *sampled, *(rng.randrange(151_000) for _ in range(more // 2))]
        messages = [
            *messages,
            {"role": "assistant", "content": f"a{number}"},
            {"role": "user", "content": f"u{number}"},
        ]


@pytest.fixture(params=databases.KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with databases.empty(request.param, tmp_path) as target, Store.open(target) as opened:
        yield opened


@pytest.mark.parametrize("spaces", [True, False])
def test_every_byte_and_every_id_comes_back(store: Store, spaces: bool) -> None:
    calls = list(session(6, spaces=spaces))
    seqs = [store.put(call) for call in calls[:3]]
    for call in calls[3:]:
        seqs.append(store.start(call))
        store.finish(seqs[-1], call)
    for seq, call in zip(seqs, calls, strict=True):
        assert store.call(seq).response_body == call.response_body
        exchange = read(store.call(seq))
        served = exchange.reply.served if hasattr(exchange, "reply") and exchange.reply else None
        assert served is not None
        assert len(served.prompt_ids or ()) == 4000 + 200 * (seq - 1)
    assert store.verify() == []


def test_a_damaged_run_is_told(tmp_path: Path) -> None:
    with Store.open(tmp_path / "t.db") as store:
        for call in session(2):
            store.put(call)
    file = sqlite3.connect(tmp_path / "t.db")
    file.execute("delete from segment where id = (select max(id) from segment)")
    file.commit()
    file.close()
    with Store.open(tmp_path / "t.db") as store:
        assert any("expected it stored, got none" in fault.what for fault in store.verify())


def size(tmp_path: Path, calls: int) -> int:
    target = tmp_path / f"{calls}.db"
    with Store.open(target) as store:
        for call in session(calls):
            store.put(call)
    return target.stat().st_size


def test_what_a_call_takes_does_not_grow_with_its_prompt(tmp_path: Path) -> None:
    """Calls 41 to 80 serve prompts twice as long as calls 1 to 40, and take what these took."""
    half, whole = size(tmp_path, 40), size(tmp_path, 80)
    assert whole - half < 1.25 * half


@settings(max_examples=200, deadline=None)
@given(
    before=st.binary(max_size=20),
    ids=st.lists(st.integers(0, 200_000) | st.just(7000), max_size=2000),
    comma=st.sampled_from([b",", b", ", b",\n"]),
    behind=st.binary(max_size=20),
)
def test_a_run_is_cut_out_and_put_back(before: bytes, ids: list[int], comma: bytes, behind: bytes) -> None:
    run = comma.join(b"%d" % i for i in ids)
    body = before + b'"prompt_token_ids": [' + run + b"]" + behind
    found = idruns.cut(body)
    if found is None:
        assert len(run) < idruns.MIN_BYTES
        return
    at, pieces = found
    assert b"".join(pieces) == run
    assert body[at : at + len(run)] == run
    assert all(0 < len(piece) <= idruns.MAX_BYTES for piece in pieces)
    assert idruns.get(idruns.put(at, b"recipe", b"rest")) == (at, b"recipe", b"rest")


def test_what_has_no_run_is_told_as_ever() -> None:
    assert idruns.cut(b'{"prompt_token_ids": [1, 2, 3]}') is None
    assert idruns.get(b"\0plain") is None


def test_an_edit_in_the_middle_moves_no_later_cut() -> None:
    rng = random.Random(3)
    ids = [rng.randrange(151_000) for _ in range(20_000)]
    pieces = [
        idruns.cut(b'"prompt_token_ids":[' + json.dumps(some).encode()[1:-1] + b"]")
        for some in (ids, ids[:9000] + ids[9007:])
    ]
    old, new = ({*one[1]} for one in pieces if one)
    assert len(new - old) == 1


def test_a_prompts_ids_take_four_bytes_each() -> None:
    served = Served(tuple(range(100_000)), (1,), None)
    assert served.prompt_ids is not None
    assert sys.getsizeof(served.prompt_ids) < 401_000
    assert served == Served(tuple(range(100_000)), (1,), None)
    assert served != Served(tuple(range(1, 100_001)), (1,), None)


@pytest.mark.parametrize("strange", [-1, 1 << 31, "1", 1.5])
def test_what_is_no_id_makes_no_prompt(strange: object) -> None:
    gathered = Gathered()
    gathered.take({"prompt_token_ids": [1, strange], "token_ids": [7]})
    assert gathered.served() == Served(None, (7,), None)
