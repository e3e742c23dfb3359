"""Real sessions, labelled by hand: the tree says the same of every call."""

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from recorder.importing import read_har
from recorder.message import Exchange
from recorder.wire import read
from treebuilder.arrival import prepare
from treebuilder.build import Builder

ROOT = Path(__file__).parent.parent.parent
CAPTURES = ROOT / "tests" / "captures"


def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_labels", ROOT / "benchmarks" / "labels.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_every_labelled_call_has_its_kind_and_lane_with_all_evidence() -> None:
    rows = benchmark().compare(CAPTURES, structural=False)
    assert len(rows) > 150
    assert [(r.scenario, r.label, r.kind, r.lane) for r in rows if not r.right or r.prefix_differs] == []


def test_structure_alone_misses_only_the_fork_that_looks_like_the_next_turn() -> None:
    rows = benchmark().compare(CAPTURES, structural=True)
    assert [(r.scenario, r.label.entry, r.kind) for r in rows if not r.right] == [
        ("claude-code/multiturn", "022", "append")
    ]


BASE_URL = {"request_class": "", "compaction": "", "context_compacted": "", "previous_id": ""}
"""What Claude Code leaves out when it is pointed at a base URL."""


@pytest.mark.parametrize(
    "missing",
    [BASE_URL, {**BASE_URL, "agent": "", "parent_agent": "", "parent_session": ""}],
    ids=["no classes and links", "nothing but the session"],
)
def test_fewer_headers_give_the_same_kinds_and_lanes(missing: dict[str, str]) -> None:
    labels = json.loads((CAPTURES / "labels.json").read_text())
    wrong = []
    for path in [*sorted(CAPTURES.glob("claude-code/*.har")), *sorted(CAPTURES.glob("opencode/*.har"))]:
        builder = Builder()
        for call in read_har(path):
            exchange = read(call)
            assert isinstance(exchange, Exchange)
            builder.place(prepare(call, replace(exchange, hints=replace(exchange.hints, **missing))))
        turns = {t.call.source.partition("#")[2]: t for t in builder.trajectory()}
        for label in labels[f"{path.parent.name}/{path.stem}"]:
            turn = turns[label["entry"]]
            if (turn.kind, turn.lane.partition(":")[0]) != (label["kind"], label["lane"].partition(":")[0]):
                wrong.append((path.stem, label["entry"], turn.kind, turn.lane))
    assert wrong == []
