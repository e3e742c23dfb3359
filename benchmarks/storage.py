"""How small and fast the store is: a session of 200 turns whose requests grow from 60 to 600 kB, and 10,000 calls.

    python benchmarks/storage.py [--rounds 5] [--calls 10000] > benchmarks/storage.md

Prints raw and stored bytes at turns 50, 100 and 200; MB/s of request bodies, the median of some rounds and the best;
milliseconds and memory a call as the file grows; and the memory that importing 1,000 and 10,000 calls takes. Times are
processor seconds of the whole process: a busy machine adds only what it takes from caches.

The session is drawn from a seed and shaped like Claude Code's: the billing block changes every time, `cache_control`
moves, tools and system stay, each turn appends an assistant message with a tool call and its result.
"""

import argparse
import json
import os
import platform
import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path

from recorder.call import Call, Outcome
from recorder.importing import import_har
from recorder.store import Store

TURNS = 200
FIRST_BYTES, LAST_BYTES = 60_000, 600_000
EVENTS_A_REPLY = 200
SHOWN = (50, 100, TURNS)


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
    parser.add_argument("--rounds", type=int, default=5, help="times that the growing session is stored")
    parser.add_argument("--calls", type=int, default=10_000, help="calls in the long file and in the import")
    options = parser.parse_args()
    print("# Storage: size, speed, memory\n\n`python benchmarks/storage.py > benchmarks/storage.md`\n")
    print(f"{date.today()}, {_processor()}, {os.cpu_count()} cores (load {os.getloadavg()[0]:.1f} at the start),")
    print(f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}\n")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _growing(folder, options.rounds)
        _import(folder, options.calls)
        _long(folder / "long.db", options.calls)


def _growing(folder: Path, rounds: int) -> None:
    calls = list(session(TURNS))
    spent_s = [[0.0] for _ in range(rounds)]
    sizes: dict[int, int] = {}
    for number in range(rounds):
        path = folder / f"growing{number}.db"
        store = Store.open(path)
        for turn, call in enumerate(calls, 1):
            began = time.process_time()
            store.put(call)
            spent_s[number].append(spent_s[number][-1] + time.process_time() - began)
            if turn in SHOWN:
                store.close()  # the write-ahead log joins the file; the store opens a new connection by itself
                sizes[turn] = path.stat().st_size
        store.close()
    print("## One session, 60 to 600 kB a request\n")
    print("| turn | requests and replies, bytes | stored, bytes | times smaller | MB/s of requests, median | best |")
    print("|---:|---:|---:|---:|---:|---:|")
    for turn in SHOWN:
        raw = sum(len(c.request_body) + len(c.response_body) for c in calls[:turn])
        megabytes = sum(len(c.request_body) for c in calls[:turn]) / 1e6
        speeds = [megabytes / spent[turn] for spent in spent_s]
        median, best = statistics.median(speeds), max(speeds)
        print(f"| {turn} | {raw:,} | {sizes[turn]:,} | {raw / sizes[turn]:.1f} | {median:.1f} | {best:.1f} |")
    with Store.open(path) as store:
        faults = store.verify()
        same = [replace(c, seq=0) for c in store.calls()] == calls
    print(f"\n`verify`: {len(faults)} faults; every call read back equal: {same}\n")


def _long(path: Path, count: int) -> None:
    """Bodies of one size whatever the turn: only the file grows. A session has 40 calls."""
    calls = list(session(40, last_bytes=FIRST_BYTES + 40 * 1800))
    spent_ms: list[float] = []
    print("## Many sessions, 60 to 130 kB a request\n\n| calls | ms a call, median of 80 | memory, MB | file, MB |")
    print("|---:|---:|---:|---:|")
    with Store.open(path) as store:
        for number in range(count):
            call = calls[number % 40]
            own = f"5f0c2a52-0000-4000-8000-{number // 40:012d}".encode()
            body = call.request_body.replace(b"5f0c2a52-0000-4000-8000-000000000001", own)
            headers = tuple(
                (n, own.decode() if n == "x-claude-code-session-id" else v) for n, v in call.request_headers
            )
            began = time.process_time()
            store.put(replace(call, request_body=body, request_headers=headers))
            spent_ms.append(1000 * (time.process_time() - began))
            if (done := number + 1) in (200, 1000, 2000, 5000, count):
                median = statistics.median(spent_ms[done - 80 : done])
                print(f"| {done:,} | {median:.2f} | {_own_mb():.0f} | {path.stat().st_size / 1e6:.1f} |")


class _Watched:
    """A store that looks at the process's memory at every batch."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.most_mb = 0.0

    def put_new(self, calls: list[Call]) -> int:
        self.most_mb = max(self.most_mb, _own_mb())
        return self._store.put_new(calls)


def _import(folder: Path, count: int) -> None:
    print("## Importing HAR files, 9 to 25 kB a request\n\n| calls | HAR, MB | CPU s | most memory, MB |")
    print("|---:|---:|---:|---:|")
    entry = [_entry(call) for call in session(20, last_bytes=FIRST_BYTES + 20 * 1800)]
    for calls in (count // 10, count):
        har = folder / f"{calls}.har"
        with open(har, "wb") as file:
            file.write(b'{"log":{"version":"1.2","creator":{"name":"b","version":"1"},"entries":[')
            for number in range(calls):
                file.write((b"," if number else b"") + entry[number % 20].replace(b"NUMBER", b"%d" % number))
            file.write(b"]}}")
        began = time.process_time()
        with Store.open(folder / f"import{calls}.db") as store:
            watched = _Watched(store)
            assert import_har(watched, har).added == calls
        spent_s = time.process_time() - began
        print(f"| {calls:,} | {har.stat().st_size / 1e6:.0f} | {spent_s:.1f} | {watched.most_mb:.0f} |")
        har.unlink()
    print()


def _entry(call: Call) -> bytes:
    """A HAR entry of a call whose system text and tools are left out."""
    body = json.loads(call.request_body)
    body |= {"system": "Be brief. NUMBER", "tools": []}
    request = {
        "method": call.method,
        "url": call.url,
        "headers": [{"name": n, "value": v} for n, v in call.request_headers],
        "postData": {"mimeType": "application/json", "text": json.dumps(body)},
    }
    response = {
        "status": call.status,
        "headers": [{"name": n, "value": v} for n, v in call.response_headers],
        "content": {"mimeType": "text/event-stream", "text": call.response_body.decode()},
    }
    at = "2026-11-30T10:00:00.000Z"
    return json.dumps({"startedDateTime": at, "time": 1000, "request": request, "response": response}).encode()


def _own_mb() -> float:
    """Memory of the process without files that it has mapped, which the system may take back."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    main()
