"""A recording under --redact holds no trace of what its rules name, not even while a call runs."""

from pathlib import Path

from proxy.tape import Tape
from proxy.writer import Writer
from recorder.call import Call, Outcome
from recorder.redact import Redactor, rules
from recorder.store import Store


def test_request_and_reply_are_redacted_before_they_reach_the_file(tmp_path: Path) -> None:
    db = tmp_path / "t.db"
    writer = Writer(lambda: Store.open(db), run="r1", notice=lambda line: None, redact=Redactor(rules(["email"])))
    writer.start()
    tape = Tape("POST", "https://api.anthropic.com/v1/messages", (), b'{"messages":[],"q":"ann@example.org"}', 1.0, 1.0)
    writer.begin(tape)
    tape.status, tape.chunks = 200, [b'{"content":[{"type":"text","text":"ann@exam', b'ple.org"}]}']
    tape.outcome, tape.ended = Outcome.COMPLETE, 2.0
    writer.end(tape)
    writer.close()
    with Store.open(db) as store:
        (call,) = store.calls()
    assert (writer.stored, writer.lost) == (1, 0)
    assert (b"example" in call.request_body, b"exam" in call.response_body) == (False, False)
    assert call.request_header("x-memorywalker-redacted") == "email=1"
    assert call.response_header("x-memorywalker-redacted") == "email=1"
    assert not [f for f in tmp_path.iterdir() if b"ann@exam" in f.read_bytes()]


def test_pieces_of_a_running_reply_are_not_stored(tmp_path: Path) -> None:
    class Ledger:
        def __init__(self) -> None:
            self.appended = 0

        def start(self, call: Call, once: bytes) -> int:
            return 1

        def append(self, pieces: object) -> None:
            self.appended += 1

        def finish(self, seq: int, call: Call) -> None: ...

        def put(self, call: Call, once: bytes) -> int:
            return 1

        def held(self, run: str) -> int:
            return 1

        def close(self) -> None: ...

    def appended(redactor: Redactor | None) -> int:
        ledger = Ledger()
        writer = Writer(lambda: ledger, run="r1", notice=lambda line: None, redact=redactor)
        tape = Tape("POST", "https://api.anthropic.com/v1/messages", (), b"{}", 1.0, 1.0, chunks=[b"half a sec"])
        writer._seqs[tape] = 1
        writer._flush(ledger)
        return ledger.appended

    assert (appended(None), appended(Redactor(rules(["email"])))) == (1, 0)
