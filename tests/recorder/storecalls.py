"""Calls for the store's tests: small, fixed, shaped like an agent's."""

import json
from dataclasses import replace

from recorder.call import Call, Outcome

SESSION = "5f0c2a52-0000-4000-8000-000000000001"


def anthropic(*texts: str, session: str = SESSION, **more: object) -> bytes:
    """A request body whose messages alternate between user and assistant."""
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": [{"type": "text", "text": t}]} for i, t in enumerate(texts)]
    body = {"model": "claude-opus-5-5", "messages": messages, "system": "Be brief.", "tools": [], "max_tokens": 9}
    return json.dumps({**body, "metadata": {"user_id": json.dumps({"session_id": session})}, **more}).encode()


def stream(*pieces: str) -> bytes:
    """An SSE reply with one event a piece."""
    events: list[dict[str, object]] = [
        {"type": "message_start", "message": {"id": "msg_1", "type": "message", "role": "assistant", "content": []}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": p}} for p in pieces),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}},
        {"type": "message_stop"},
    ]
    return b"".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n".encode() for e in events)


CALL = Call(
    method="POST",
    url="https://api.anthropic.com/v1/messages?beta=true",
    status=200,
    outcome=Outcome.COMPLETE,
    request_headers=(("content-type", "application/json"), ("user-agent", "claude-cli/2.1.332 (external, sdk-cli)")),
    response_headers=(("content-type", "text/event-stream; charset=utf-8"), ("request-id", "req_1")),
    request_body=anthropic("List the files."),
    response_body=stream("There", " are", " two", " files", "."),
    started_at_utc=1_796_074_003.25,
    first_byte_s=0.125,
    duration_s=1.5,
    source="proxy",
    run="r1",
)


def turns(count: int, *, session: str = SESSION, run: str = "r1") -> list[Call]:
    """A session that grows by a question and an answer a call."""
    texts: list[str] = []
    made: list[Call] = []
    for turn in range(count):
        texts.append(f"Question {turn} of {session}: " + "why so? " * 90)
        body = anthropic(*texts, session=session)
        reply = stream(*(f"word{turn}-{i} " for i in range(30)))
        made.append(
            replace(CALL, request_body=body, response_body=reply, run=run, started_at_utc=1_796_074_000.0 + turn)
        )
        texts.append("".join(f"word{turn}-{i} " for i in range(30)))
    return made
