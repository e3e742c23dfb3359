"""The tree of a scrubbed recording is the tree of the recording."""

from pathlib import Path

import pytest

from recorder.call import Call
from recorder.importing import read_har
from recorder.scrub import scrub_calls
from treebuilder import wording
from treebuilder.build import build

CAPTURES = sorted((Path(__file__).parents[1] / "captures").glob("*/*.har"))


def shape(calls: list[Call], *, structural: bool) -> list[tuple[object, ...]]:
    """All that a tree says of its turns, but for names derived from content."""
    tree = build(calls, structural=structural)
    threads = {name: i for i, name in enumerate(dict.fromkeys(t.thread for t in tree))}
    return [
        (
            turn.kind,
            turn.lane if turn.hints.agent and not structural else turn.lane.partition(":")[0],
            threads[turn.thread],
            turn.prefix,
            turn.depth,
            turn.chars,
            turn.parent,
            turn.origin,
            turn.quotes,
            [(e.message, e.count, e.turn, e.exact) for e in turn.echoes],
            bool(turn.opaque),
        )
        for turn in tree
    ]


@pytest.mark.parametrize("path", CAPTURES, ids=lambda p: f"{p.parent.name}/{p.stem}")
@pytest.mark.parametrize("structural", [False, True], ids=["all evidence", "structure alone"])
def test_the_tree_of_a_scrubbed_recording_is_the_same(path: Path, structural: bool) -> None:
    calls = list(read_har(path))
    scrubbed = list(scrub_calls(calls, keep=wording.KNOWN, salt=b"salt"))
    assert [c.request_body for c in scrubbed] != [c.request_body for c in calls]
    assert shape(scrubbed, structural=structural) == shape(calls, structural=structural)
