"""Real sessions, labelled by hand: the tree says the same of every call."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

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
