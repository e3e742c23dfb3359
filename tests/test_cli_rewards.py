"""Rewards, choices and parts as a user meets them: what the commands print, store, write and refuse."""

import json
from pathlib import Path

import orjson
import pytest

import memorywalker
from recorder.rewards import Reward
from recorder.store import Store

CAPTURES = Path(__file__).parent / "captures"
COMPACTED = "8f42102a-33ff-4414-b9b6-92a70b4f493f"
LONG = "a35b4fb5-e404-4de2-a709-c274f18c09fa"


@pytest.fixture
def db(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Three sessions of Claude Code and two of OpenCode, one of these forked from the other."""
    target = str(tmp_path / "t.db")
    for name in ("claude-code/autocompact", "claude-code/multiturn", "opencode/fork_anthropic"):
        assert memorywalker.main(["import", str(CAPTURES / f"{name}.har"), "--db", target]) == 0
    capsys.readouterr()
    return target


def out(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert memorywalker.main(words) == 0
    return capsys.readouterr().out


def said(capsys: pytest.CaptureFixture[str], code: int, *words: str) -> str:
    """The one line on stderr of a command that fails."""
    assert memorywalker.main(words) == code
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    return err.removeprefix("memorywalker: ").rstrip("\n")


def stored(db: str) -> list[Reward]:
    with Store.open(db) as store:
        return store.rewards()


class TestReward:
    def test_of_a_session_by_the_start_of_its_id(self, db: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert out(capsys, "reward", "8f42", "1", "--db", db) == "1 reward stored\n"
        assert out(capsys, "reward", "8f42", "-2.5", "--name", "style", "--group", "g", "--db", db)
        assert stored(db) == [Reward(COMPACTED, 1.0), Reward(COMPACTED, -2.5, "style", "g")]

    def test_without_a_value_is_shown(self, db: str, capsys: pytest.CaptureFixture[str]) -> None:
        out(capsys, "reward", "8f42", "1", "--db", db)
        out(capsys, "reward", "a35b", "0.25", "--group", "g", "--db", db)
        assert out(capsys, "reward", "--db", db).splitlines()[1:] == [
            f"{COMPACTED}  reward  1      by first prompt",
            f"{LONG}  reward  0.25   g",
        ]
        assert out(capsys, "reward", "--list", "--db", db) == out(capsys, "reward", "--db", db)
        (one,) = map(json.loads, out(capsys, "reward", "a35b", "--json", "--db", db).splitlines())
        assert one == {"session": LONG, "value": 0.25, "name": "reward", "group": "g"}

    def test_can_be_taken_back(self, db: str, capsys: pytest.CaptureFixture[str]) -> None:
        out(capsys, "reward", "8f42", "1", "--db", db)
        assert out(capsys, "reward", "8f42", "--remove", "--db", db) == "1 reward removed\n"
        assert out(capsys, "reward", "--db", db) == ""

    def test_from_a_file_is_all_or_none(self, db: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        file = tmp_path / "r.jsonl"
        file.write_text('{"session": "8f42", "value": 1}\n{"session": "zzz", "value": 0}\n')
        words = f"{file}:2: expected the id of one session, or its start, got 'zzz', which fits 0 of 5, at {db}"
        assert said(capsys, 1, "reward", "--from", str(file), "--db", db) == words
        assert stored(db) == []
        file.write_text('{"session": "8f42", "value": 1}\n{"session": "a35b", "value": 0, "group": "g"}\n')
        assert out(capsys, "reward", "--from", str(file), "--db", db) == "2 rewards stored\n"
        assert stored(db) == [Reward(COMPACTED, 1.0), Reward(LONG, 0.0, group="g")]

    def test_of_a_session_that_only_the_tree_tells_apart(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        target = str(tmp_path / "q.db")
        out(capsys, "import", str(CAPTURES / "qwen/qwen_agent.har"), "--db", target)
        assert out(capsys, "reward", "run:8b51", "1", "--db", target) == "1 reward stored\n"
        (one,) = stored(target)
        assert one.session.startswith("run:8b51")
        assert one.group is not None
        assert one.group.startswith("prompt:")
        (run,) = map(json.loads, out(capsys, "sessions", "--json", "--db", target).splitlines())
        words = said(capsys, 1, "reward", run["session"], "1", "--db", target)
        assert words.startswith("expected the id of one session, got a run of 2 sessions, which `tree` names, at ")

    @pytest.mark.parametrize(
        ("words", "line"),
        [
            (["8f42", "1", "--remove"], "expected SESSION VALUE, --from FILE, --remove or --list; got two of them"),
            (["--from", "f", "8f42"], "expected --from FILE alone: sessions, names and groups stand in it"),
            (["--remove"], "expected SESSION with --remove, and no --list"),
            (["8f42", "many"], "Invalid value for '[VALUE]': "),
        ],
    )
    def test_said_wrongly_is_wrong_usage(
        self, db: str, words: list[str], line: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert said(capsys, 2, "reward", *words, "--db", db).startswith(line)


class TestExport:
    def write(self, db: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], *words: str) -> str:
        pytest.importorskip("torch", reason="the train extra is not installed")
        return out(capsys, "export", *words, "--tokenizer", "tiny", "--db", db, "--out", str(tmp_path / "d"))

    def manifest(self, tmp_path: Path) -> dict[str, dict[str, object]]:
        found: dict[str, dict[str, object]] = orjson.loads((tmp_path / "d" / "manifest.json").read_bytes())
        return found

    def test_stamps_advantages_on_the_tokens_of_every_row(
        self, db: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The compacted session is three rows and counts once: 1 and 0 have the mean 1/2 and std sqrt(1/2)."""
        out(capsys, "reward", "8f42", "1", "--group", "g", "--db", db)
        out(capsys, "reward", "a35b", "0", "--group", "g", "--db", db)
        shown = self.write(db, tmp_path, capsys)
        assert "2 sessions have a reward, in 1 groups\n" in shown
        assert " no_reward, " in shown
        rows = [orjson.loads(line) for line in (tmp_path / "d" / "rows.jsonl").read_bytes().splitlines()]
        seen = {
            (row["trajectory"], a)
            for row in rows
            for a, m in zip(row["advantages"], row["loss_mask"], strict=True)
            if m
        }
        assert {(s, round(a, 6)) for s, a in seen} == {(COMPACTED, 0.707107), (LONG, -0.707107)}
        assert sum(row["trajectory"] == COMPACTED for row in rows) == 3

    def test_without_advantages_counts_every_session_alike(
        self, db: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        out(capsys, "reward", "8f42", "5", "--db", db)
        assert "have a reward" not in self.write(db, tmp_path, capsys, "--advantages", "none")
        rows = [orjson.loads(line) for line in (tmp_path / "d" / "rows.jsonl").read_bytes().splitlines()]
        assert {a for row in rows for a in row["advantages"]} == {0.0, 1.0}
        assert len({row["trajectory"] for row in rows}) == 5

    def test_sampled_is_the_same_sum_whatever_is_chosen(
        self, db: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        sums = []
        for words in ([], ["--train", "main"], ["--harness", "opencode"], ["--kind", "append,root"]):
            self.write(db, tmp_path, capsys, *words, "--overwrite")
            told = self.manifest(tmp_path)["conservation"]
            excused = told["excused"]
            assert isinstance(excused, dict)
            left = sum(one["tokens"] for one in excused.values())
            assert told["sampled_tokens"] == told["trained_tokens"] + left
            sums.append((told["sampled_tokens"], bool(excused.get("filtered"))))
        assert sums == [(sums[0][0], False), *[(sums[0][0], True)] * 3]

    def test_filters_by_reward(self, db: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        out(capsys, "reward", "8f42", "1", "--db", db)
        out(capsys, "reward", "a35b", "0", "--db", db)
        self.write(db, tmp_path, capsys, "--min-reward", "0.5")
        rows = [orjson.loads(line) for line in (tmp_path / "d" / "rows.jsonl").read_bytes().splitlines()]
        assert {row["trajectory"] for row in rows} == {COMPACTED}

    def test_reads_only_what_is_asked_for(
        self, db: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        read: list[str] = []
        whole = Store._call

        def counting(store: Store, connection: object, row: object) -> object:
            call = whole(store, connection, row)  # type: ignore[arg-type]
            read.append(call.source.partition("#")[0])
            return call

        monkeypatch.setattr(Store, "_call", counting)
        self.write(db, tmp_path, capsys, "8f42")
        assert set(read) == {"autocompact.har"}

    def test_parts_share_no_trunk(self, db: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Two OpenCode sessions, one forked from the other, are in one part: their rows share more than a head."""
        shown = self.write(db, tmp_path, capsys, "--split", "train=0.5,eval=0.5", "--split-seed", "1")
        assert shown.splitlines()[-1].startswith("split: train ")
        where: dict[str, set[str]] = {}
        for part in ("train", "eval"):
            for line in (tmp_path / "d" / part / "rows.jsonl").read_bytes().splitlines():
                where.setdefault(orjson.loads(line)["trajectory"], set()).add(part)
        assert len(where) == 5
        assert all(len(parts) == 1 for parts in where.values())
        forked = [parts for session, parts in where.items() if session.startswith("ses_dd19")]
        assert forked[0] == forked[1]
        assert set.union(*where.values()) == {"train", "eval"}

    @pytest.mark.parametrize(
        ("code", "words", "line"),
        [
            (
                2,
                ["--train", "all"],
                "expected --train out of main, subagent, summary, side, aborted, opaque; got 'all'",
            ),
            (2, ["--min-reward", "1"], "expected --min-reward with rewards of the name 'reward', got none at "),
            (2, ["--kind", "odd"], "expected --kind out of root, append, "),
            (1, ["--split", "train"], "split: expected NAME=SHARE,... with shares above 0 that sum to 1, got 'train'"),
            (1, ["8f42", "--split", "a=0.5,b=0.5"], "split: expected sessions in each part, got none in "),
        ],
    )
    def test_what_makes_no_sense_is_one_line(
        self,
        db: str,
        tmp_path: Path,
        code: int,
        words: list[str],
        line: str,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        pytest.importorskip("torch", reason="the train extra is not installed")
        rest = ("--tokenizer", "tiny", "--db", db, "--out", str(tmp_path / "d"))
        assert said(capsys, code, "export", *words, *rest).startswith(line)
        assert not (tmp_path / "d").exists()
