"""claude-trace's JSONL and folders of raw API bodies, written by hand after their formats, told by their content."""

import json
import os
from pathlib import Path

import pytest

from recorder.call import Outcome
from recorder.errors import SourceError
from recorder.importing import import_path, read_claude_trace, read_har, read_raw_bodies, reader_of
from recorder.message import Exchange
from recorder.store import Store
from recorder.wire import read

STREAM = (
    'event: message_start\ndata: {"type":"message_start","message":{"id":"msg_1"}}\n\n'
    'event: message_stop\ndata: {"type":"message_stop"}\n\n'
)
PAIR = {
    "request": {
        "timestamp": 1796076000.25,
        "method": "POST",
        "url": "https://api.anthropic.com/v1/messages?beta=true",
        "headers": {"x-api-key": "sk-ant-api...abcd", "User-Agent": "claude-cli/1.0.44 (external, cli)"},
        "body": {"model": "m", "messages": [{"role": "user", "content": "Größe \u2028"}], "stream": True},
    },
    "response": {
        "timestamp": 1796076001.5,
        "status_code": 200,
        "headers": {"content-type": "text/event-stream; charset=utf-8", "content-encoding": "gzip", "request-id": "r"},
        "body_raw": STREAM,
    },
    "logged_at": "2026-11-30T22:00:01.600Z",
}


def log(path: Path, *lines: object) -> Path:
    text = "".join((line if isinstance(line, str) else json.dumps(line, ensure_ascii=False)) + "\n" for line in lines)
    path.write_text(text, encoding="utf-8")
    return path


def test_a_pair_of_claude_trace_becomes_a_call(tmp_path: Path) -> None:
    (call,) = read_claude_trace(log(tmp_path / "log.jsonl", PAIR))
    body = '{"model":"m","messages":[{"role":"user","content":"Größe \u2028"}],"stream":true}'
    assert call.request_body == body.encode()
    assert call.response_body == STREAM.encode()
    assert call.request_headers == (("user-agent", "claude-cli/1.0.44 (external, cli)"),)
    assert call.response_headers == (("content-type", "text/event-stream; charset=utf-8"), ("request-id", "r"))
    assert (call.status, call.outcome, call.source) == (200, Outcome.COMPLETE, "log.jsonl#1")
    assert (call.started_at_utc, call.duration_s) == (1796076000.25, 1.25)


def test_a_pair_without_its_response_and_one_that_is_no_model_call(tmp_path: Path) -> None:
    orphan = PAIR | {"response": None, "note": "ORPHANED_REQUEST"}
    other = json.loads(json.dumps(PAIR))
    other["request"]["url"] = "https://api.anthropic.com/api/hello"
    refused = PAIR | {"response": {"status_code": 429, "headers": {}, "body": {"type": "error", "error": {}}}}
    with Store.open(tmp_path / "t.db") as store:
        path = log(tmp_path / "log.jsonl", orphan, "", other, refused)
        first, second = import_path(store, path), import_path(store, path)
        calls = list(store.calls())
    assert (first.added, first.already, first.others) == (2, 0, 1)
    assert (second.added, second.already, second.others) == (0, 2, 1)
    assert [(c.outcome, c.source, c.error) for c in calls] == [
        (Outcome.UNANSWERED, "log.jsonl#1", "recorder: the log holds no response"),
        (Outcome.HTTP_ERROR, "log.jsonl#4", ""),
    ]
    assert calls[1].response_body == b'{"type":"error","error":{}}'


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{oops", "import: expected a JSON object, got "),
        (
            '{"type":"user","message":{}}',
            "import: expected a pair of request and response, got other JSON at line 2 of",
        ),
        ('{"request":{"url":"u"}}', "import: request.method: expected text, got NoneType, at line 2 of"),
        (
            json.dumps(PAIR | {"response": {"status_code": "200"}}),
            "import: claude-trace: expected a number, got str, at line 2",
        ),
    ],
)
def test_a_line_that_is_no_pair_is_named_and_nothing_is_stored(tmp_path: Path, line: str, said: str) -> None:
    with Store.open(tmp_path / "t.db") as store:
        with pytest.raises(SourceError) as caught:
            import_path(store, log(tmp_path / "log.jsonl", PAIR, line))
        assert list(store.calls()) == []
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)


def test_the_format_is_told_by_the_content_and_not_by_the_name(tmp_path: Path) -> None:
    assert reader_of(log(tmp_path / "a.har", PAIR)) is read_claude_trace
    assert reader_of(log(tmp_path / "b.jsonl", {"log": {"entries": []}})) is read_har
    (tmp_path / "x.request.json").write_text("{}")
    assert reader_of(tmp_path) is read_raw_bodies


# ---- OTEL_LOG_RAW_API_BODIES=file:DIR

SESSION = '{"session_id":"5f0c2a52-0000-4000-8000-000000000001"}'


def ask(*messages: dict[str, object], previous: str = "", model: str = "claude-opus-5-5") -> dict[str, object]:
    billing = "x-anthropic-billing-header: cc_version=2.1.260;" + (f" cc_prev_req={previous};" if previous else "")
    system = [{"type": "text", "text": billing}, {"type": "text", "text": "Be brief."}]
    return {"model": model, "messages": messages, "system": system, "metadata": {"user_id": SESSION}, "max_tokens": 9}


def user(text: str) -> dict[str, object]:
    return {"role": "user", "content": [{"type": "text", "text": text}]}


def said(text: str) -> dict[str, object]:
    return {"role": "assistant", "content": [{"type": "text", "text": text}]}


def answer(text: str, model: str = "claude-opus-5-5") -> dict[str, object]:
    made = {"id": f"msg_{text}", "type": "message", "role": "assistant", "model": model, "stop_reason": "end_turn"}
    return made | {"content": [{"type": "text", "text": text}], "usage": {"input_tokens": 3, "output_tokens": 1}}


def folder(path: Path, *files: tuple[str, object]) -> Path:
    """Files written one after the other, a second apart."""
    path.mkdir(exist_ok=True)
    for place, (name, content) in enumerate(files):
        file = path / name
        file.write_text(content if isinstance(content, str) else json.dumps(content))
        os.utime(file, ns=(0, 1_796_076_000_000_000_000 + place * 1_000_000_000))
    return path


def joined(path: Path) -> list[tuple[str, str]]:
    """What was asked last, and what was answered."""
    found = []
    for call in read_raw_bodies(path):
        meaning = read(call)
        assert isinstance(meaning, Exchange)
        found.append((meaning.messages[-1].plain, meaning.reply.message.plain if meaning.reply else ""))
    return found


def test_a_response_belongs_to_the_request_that_a_later_one_goes_on_from(tmp_path: Path) -> None:
    one, two = user("one"), user("two")
    path = folder(
        tmp_path / "raw",
        ("a.request.json", ask(one)),
        ("b.request.json", ask(two)),
        ("req_1.response.json", answer("to one")),
        ("req_2.response.json", answer("to two")),
        ("c.request.json", ask(one, said("to one"), user("more"))),
        ("d.request.json", ask(two, said("to two"), user("less"))),
        ("req_3.response.json", answer("last")),
    )
    assert joined(path) == [("one", "to one"), ("two", "to two"), ("more", ""), ("less", "last")]


def test_a_response_that_was_changed_on_its_way_is_found_by_its_request_id(tmp_path: Path) -> None:
    one, two = user("one"), user("two")
    path = folder(
        tmp_path / "raw",
        ("a.request.json", ask(one)),
        ("b.request.json", ask(two)),
        ("req_1.response.json", answer("to one")),
        ("c.request.json", ask(one, said("to one, trimmed"), user("more"), previous="req_1")),
    )
    assert joined(path)[:2] == [("one", "to one"), ("two", "")]


def test_a_raw_call_says_what_its_files_say(tmp_path: Path) -> None:
    path = folder(tmp_path / "raw", ("a.request.json", ask(user("one"))), ("req_1.response.json", answer("yes")))
    (call,) = read_raw_bodies(path)
    assert call.request_body == (path / "a.request.json").read_bytes()
    assert call.response_body == (path / "req_1.response.json").read_bytes()
    assert (call.source, call.run) == ("a.request.json#req_1.response.json", "import-raw-api-bodies")
    assert (call.started_at_utc, call.duration_s, call.status) == (1796076000.0, 1.0, 200)
    assert ("request-id", "req_1") in call.response_headers


def test_a_folder_that_grew_adds_what_is_new_wherever_it_lies(tmp_path: Path) -> None:
    files = (("a.request.json", ask(user("one"))), ("req_1.response.json", answer("yes")))
    with Store.open(tmp_path / "t.db") as store:
        assert import_path(store, folder(tmp_path / "raw", *files)).added == 1
        again = import_path(store, folder(tmp_path / "copy", *files, ("b.request.json", ask(user("two")))))
        assert (again.added, again.already) == (1, 1)
        assert {s.session for s in store.sessions()} == {"5f0c2a52-0000-4000-8000-000000000001"}


def test_a_response_to_nothing_is_counted_and_not_forced_on_another_model(tmp_path: Path) -> None:
    path = folder(
        tmp_path / "raw", ("a.request.json", ask(user("one"))), ("req_9.response.json", answer("?", "claude-haiku-5"))
    )
    with Store.open(tmp_path / "t.db") as store:
        done = import_path(store, path)
        (call,) = store.calls()
    assert (done.added, done.others) == (1, 1)
    assert (call.outcome, call.error) == (Outcome.UNANSWERED, "recorder: the folder holds no response")


def test_a_raw_file_that_was_cut_is_named_and_nothing_is_stored(tmp_path: Path) -> None:
    path = folder(tmp_path / "raw", ("a.request.json", ask(user("one"))), ("b.request.json", '{"model":"m","mess'))
    with Store.open(tmp_path / "t.db") as store:
        with pytest.raises(SourceError, match=r"^import: expected a JSON object, got .* at .*b\.request\.json$"):
            import_path(store, path)
        assert list(store.calls()) == []


def test_a_folder_without_requests_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"^import: expected files named \*\.request\.json, got none in the folder "):
        reader_of(tmp_path)


def test_progress_is_told_after_each_batch(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    path = log(tmp_path / "log.jsonl", *[PAIR] * 40)
    with Store.open(tmp_path / "t.db") as store:
        import_path(store, path, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(32, 40), (40, 40)]
