"""How small and fast the store is: a session of 200 turns whose requests grow from 60 to 600 kB, and many sessions.

    python benchmarks/storage.py [--turns 2000]

Prints raw and stored bytes at turns 50, 100 and 200, MB/s of request bodies, and milliseconds a call around call 100
and the last. The session is drawn from a seed and shaped like Claude Code's: the billing block changes every time,
`cache_control` moves, tools and system stay, each turn appends an assistant message with a tool call and its result.
"""

import argparse
import json
import os
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from recorder.call import Call, Outcome
from recorder.store import Store

TURNS = 200
FIRST_BYTES, LAST_BYTES = 60_000, 600_000
EVENTS_A_REPLY = 200


class Words:
    """Text with the statistics of code and prose: 4000 words, the frequent ones short (Zipf)."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        letters = "etaoinshrdlucmfwypvbgkjqxz"
        self.words = [
            "".join(self.random.choices(letters, weights=range(26, 0, -1), k=2 + min(9, rank.bit_length() - 1)))
            for rank in range(1, 4001)
        ]
        self.weights = [1 / rank for rank in range(1, 4001)]

    def text(self, size_bytes: int) -> str:
        words = self.random.choices(self.words, weights=self.weights, k=size_bytes // 4)
        lines = [" ".join(words[i : i + 9]) for i in range(0, len(words), 9)]
        return "\n".join(lines)[:size_bytes]

    def id(self, prefix: str) -> str:
        return prefix + "".join(self.random.choices("0123456789ABCDEFGHJKMNPQRSTVWXYZabcdefghjkmnpqrstvwxyz", k=24))


def session(
    turns: int, *, seed: int = 1, last_bytes: int = LAST_BYTES, name: str = "5f0c2a52-0000-4000-8000-000000000001"
) -> Iterator[Call]:
    """The calls of one session, each request the last one and a turn more."""
    w = Words(seed)
    tools = [
        {
            "name": f"Tool{i}",
            "description": w.text(900),
            "input_schema": {
                "type": "object",
                "properties": {
                    w.text(9).replace("\n", "_"): {"type": "string", "description": w.text(90)} for _ in range(5)
                },
            },
        }
        for i in range(20)
    ]
    system = w.text(20_000)
    messages: list[dict[str, object]] = [
        {"role": "user", "content": [{"type": "text", "text": w.text(FIRST_BYTES - 55_000 + 8_000)}]}
    ]
    turn_bytes = (last_bytes - FIRST_BYTES) // turns
    for turn in range(turns):
        text = w.text(EVENTS_A_REPLY * 6)
        tool_id, reply_id = w.id("toolu_01"), w.id("msg_01")
        sent = [*messages[:-1], _cached(messages[-1])]
        body = {
            "model": "claude-opus-5-5",
            "messages": sent,
            "system": [
                {
                    "type": "text",
                    "text": f"x-anthropic-billing-header: cc_version=2.1.332; cch={w.id('')[:5]}; prev={reply_id};",
                },
                {"type": "text", "text": system, "cache_control": {"type": "ephemeral"}},
            ],
            "tools": tools,
            "metadata": {"user_id": json.dumps({"device_id": "d" * 64, "account_uuid": "", "session_id": name})},
            "max_tokens": 32000,
            "thinking": {"type": "adaptive"},
            "diagnostics": {"previous_message_id": reply_id},
            "stream": True,
        }
        yield Call(
            method="POST",
            url="https://api.anthropic.com/v1/messages?beta=true",
            status=200,
            outcome=Outcome.COMPLETE,
            request_headers=_request_headers(name, w),
            response_headers=(("content-type", "text/event-stream; charset=utf-8"), ("request-id", w.id("req_01"))),
            request_body=json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode(),
            response_body=_reply(reply_id, text, tool_id, w),
            started_at_utc=1_796_000_000.0 + turn * 7.25,
            first_byte_s=0.8 + w.random.random(),
            duration_s=4.0 + w.random.random(),
            source="proxy",
            run="r-benchmark",
        )
        result = w.text(max(100, turn_bytes - len(text) - 330))
        messages += [
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": text},
                    {"type": "tool_use", "id": tool_id, "name": "Tool3", "input": {"command": "ls"}},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": tool_id, "content": result}]},
        ]


def _cached(message: dict[str, object]) -> dict[str, object]:
    content = message["content"]
    assert isinstance(content, list)
    return {**message, "content": [*content[:-1], {**content[-1], "cache_control": {"type": "ephemeral"}}]}


def _request_headers(name: str, w: Words) -> tuple[tuple[str, str], ...]:
    return (
        ("content-type", "application/json"),
        ("user-agent", "claude-cli/2.1.332 (external, sdk-cli)"),
        ("anthropic-version", "2023-06-01"),
        ("anthropic-beta", "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27"),
        ("x-claude-code-session-id", name),
        ("x-claude-code-request-class", "main"),
        ("x-client-request-id", w.id("")),
        ("x-stainless-lang", "js"),
        ("x-stainless-runtime", "node"),
        ("x-stainless-retry-count", "0"),
    )


def _reply(reply_id: str, text: str, tool_id: str, w: Words) -> bytes:
    step = max(1, len(text) // (EVENTS_A_REPLY - 8))
    events: list[dict[str, object]] = [
        {
            "type": "message_start",
            "message": {
                "id": reply_id,
                "type": "message",
                "role": "assistant",
                "model": "claude-opus-5-5",
                "content": [],
                "stop_reason": None,
                "usage": {
                    "input_tokens": w.random.randrange(9, 9999),
                    "cache_read_input_tokens": w.random.randrange(99999),
                    "output_tokens": 1,
                },
            },
        },
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *(
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text[i : i + step]}}
            for i in range(0, len(text), step)
        ),
        {"type": "content_block_stop", "index": 0},
        {
            "type": "content_block_start",
            "index": 1,
            "content_block": {"type": "tool_use", "id": tool_id, "name": "Tool3", "input": {}},
        },
        {
            "type": "content_block_delta",
            "index": 1,
            "delta": {"type": "input_json_delta", "partial_json": '{"command": "ls"}'},
        },
        {"type": "content_block_stop", "index": 1},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "tool_use", "stop_sequence": None},
            "usage": {"output_tokens": w.random.randrange(99, 999)},
        },
        {"type": "message_stop"},
    ]
    return b"".join(
        b"event: %s\ndata: %s\n\n" % (str(e["type"]).encode(), json.dumps(e, separators=(",", ":")).encode())
        for e in events
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=2000, help="turns of the long session (600 kB at its end)")
    options = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {platform.system()}")
    with tempfile.TemporaryDirectory() as folder:
        _growing(Path(folder) / "growing.db")
        _long(Path(folder) / "long.db", options.turns)


def _growing(path: Path) -> None:
    requests = raw = 0
    spent_s = 0.0
    print("turn        raw    stored  ratio  MB/s of requests, CPU")
    for turn, call in enumerate(session(TURNS), 1):
        requests += len(call.request_body)
        raw += len(call.request_body) + len(call.response_body)
        with_store = _store(path)
        began = time.process_time()
        with_store.put(call)
        spent_s += time.process_time() - began
        if turn in (50, 100, TURNS):
            _close()
            size = path.stat().st_size
            print(f"{turn:>4} {raw:>10,} {size:>9,}  {raw / size:>5.1f}  {requests / spent_s / 1e6:>5.1f}")
    with Store.open(path) as store:
        assert store.verify() == []
        same = all(
            a.request_body == b.request_body and a.response_body == b.response_body
            for a, b in zip(store.calls(), session(TURNS), strict=True)
        )
    print(f"verified, every byte equal: {same}")


def _long(path: Path, turns: int) -> None:
    """Bodies of one size whatever the turn: only the file grows."""
    calls = list(session(40, last_bytes=FIRST_BYTES + 40 * 1800))
    spent_ms: list[float] = []
    with Store.open(path) as store:
        for number in range(turns):
            call = calls[number % 40]
            own = f"5f0c2a52-0000-4000-8000-{number // 40:012d}".encode()
            body = call.request_body.replace(b"5f0c2a52-0000-4000-8000-000000000001", own)
            headers = tuple(
                (n, own.decode() if n == "x-claude-code-session-id" else v) for n, v in call.request_headers
            )
            began = time.process_time()
            store.put(replace(call, request_body=body, request_headers=headers))
            spent_ms.append(1000 * (time.process_time() - began))
    for at in (100, turns):
        print(f"a call among the last 80 of {at}: median {statistics.median(spent_ms[at - 80 : at]):.2f} ms CPU")


_open: list[Store] = []


def _store(path: Path) -> Store:
    if not _open:
        _open.append(Store.open(path))
    return _open[0]


def _close() -> None:
    while _open:
        _open.pop().close()


if __name__ == "__main__":
    main()
