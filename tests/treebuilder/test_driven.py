"""Sessions that the rules were not made from: what their scripts did, and what structure alone cannot know of it."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from recorder.importing import read_har
from treebuilder.build import build
from treebuilder.details import Detail, details
from treebuilder.tree import Trajectory

ROOT = Path(__file__).parent.parent.parent
DRIVEN = ROOT / "tests" / "driven"


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_of_driven", ROOT / "benchmarks" / "labels.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_every_call_has_its_kind_lane_and_prefix_with_all_evidence(benchmark: ModuleType) -> None:
    rows = benchmark.compare(DRIVEN, structural=False)
    assert len(rows) > 130
    assert [(r.scenario, r.label, r.kind, r.lane) for r in rows if not r.right or r.prefix_differs] == []


def test_structure_alone_takes_a_fork_by_a_new_id_for_the_next_turn_or_a_rewind(benchmark: ModuleType) -> None:
    """Limit: without the id, a fork is what a user makes who goes on, or who takes a turn back."""
    rows = benchmark.compare(DRIVEN, structural=True)
    assert [(r.scenario, r.label.entry, r.label.kind, r.kind) for r in rows if not r.right] == [
        ("claude-code/resume_fork", "5", "forked", "append"),
        ("claude-code/resume_fork", "7", "forked", "rewound"),
        ("claude-code/resume_fork", "9", "append", "rewound"),
        ("opencode/plan_switch", "12", "forked", "reminder_moved"),
    ]


def tree(name: str) -> Trajectory:
    return build(read_har(DRIVEN / f"{name}.har"))


def told(trajectory: Trajectory) -> dict[str, list[Detail]]:
    found = {}
    for turn in trajectory:
        before = trajectory.turns[turn.parent] if turn.parent is not None else None
        if said := details(turn, before):
            found[turn.call.source.partition("#")[2]] = list(said)
    return found


def test_details_of_real_edits() -> None:
    assert told(tree("opencode/plan_switch")) == {
        "4": [Detail.REMINDER_DROPPED],
        "6": [Detail.REMINDER_MOVED],
        "8": [Detail.REMINDER_DROPPED],
    }
    assert told(tree("claude-code/toolsearch")) == {"6": [Detail.RESULT_NOTICE]}
    assert told(tree("claude-code/errors_mixed")) == {"9": [Detail.CONTINUED]}


def test_a_summary_made_after_too_long_a_prompt_is_followed_by_the_turns_it_left_out() -> None:
    turns = tree("claude-code/reactive_base_url").turns
    asked, after = turns[5], turns[6]
    assert (asked.prefix, after.quotes) == (3, 5)
    assert [e.turn for e in after.echoes if e.exact] == [1, 2, 3]


def test_agents_know_the_call_that_started_them() -> None:
    turns = tree("claude-code/nested_agents").turns
    first = {t.lane: t for t in turns if t.kind == "root" and t.lane != "main"}
    starters = [turns[t.origin].lane.partition(":")[0] for t in first.values() if t.origin is not None]
    assert (len(first), sorted(starters)) == (5, ["agent", "agent", "main", "main", "main"])
