"""Two processes over gloo give the gradients of one, however unevenly the tries fall; a sharded run resumes exactly.

Seen red, each by hand once: gradients not added up (the idle rank has none); averaged instead of summed (halves, both
layouts); each rank's own tokens as the mean's denominator; the closing visit left out (no gradient arrives), or skipped
by an idle rank (the others wait for it: the time limit).
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import on_ranks
import orjson
import pytest
import torch
from oracles import float64_model, gradients, worst
from transformers import AutoModelForCausalLM

LIMIT_S = 400  # about 15 s of work on each of two idle cores; a loaded machine takes many times that

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which two ranks have done all that on_ranks.py does."""
    folder = tmp_path_factory.mktemp("ranks")
    environ = {**os.environ, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    environ |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": os.pathsep.join(sys.path)}
    program = [sys.executable, "-W", "ignore", on_ranks.__file__, str(folder)]
    ranks = [
        subprocess.Popen(
            [*program, str(rank), "2"],
            env={**environ, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for rank in (0, 1)
    ]
    try:
        said = [rank.communicate(timeout=LIMIT_S)[0].decode() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(said)
    return folder


@pytest.fixture(scope="module")
def found(together: Path) -> Any:
    return torch.load(together / "gradients.pt")


@pytest.mark.parametrize("sharded", [False, True], ids=["replicated", "sharded"])
@pytest.mark.parametrize("case", on_ranks.CASES)
def test_two_ranks_give_the_gradients_of_one(case: str, sharded: bool, found: Any, tmp_path: Path) -> None:
    one, two = on_ranks.gradients_of(case, tmp_path, sharded=False), found[case, sharded]
    assert len(one["gradients"]) == len(two["gradients"]) == 2
    # The second step's weights are those of Adam, which turns a rounding error in a gradient near 0 into one of 1e-5.
    for step, tolerance in ((0, 1e-10), (1, 1e-4)):
        ours, theirs = two["gradients"][step], one["gradients"][step]
        assert ours.keys() == theirs.keys()
        assert worst(list(ours.values()), list(theirs.values())) < tolerance
        assert two["stats"][step] == pytest.approx(one["stats"][step], rel=1e-6 if step == 0 else 1e-4)


def test_one_rank_gives_the_gradient_of_a_single_call(tmp_path: Path) -> None:
    """What the two are held against is itself held against an engine alone."""
    from trainer.engines import engine
    from trainer.losses import nll
    from trainer.trie import TokenTrie

    model = float64_model()
    step = on_ranks.gradients_of("an idle rank", tmp_path, sharded=False)["gradients"][0]
    samples = [s for episode in on_ranks.EPISODES for s in episode.samples]
    engine("separate").backward(model, TokenTrie.build(samples), objective=nll())
    assert worst(list(step.values()), gradients(model)) < 1e-10


def test_a_sharded_run_leaves_what_a_replicated_one_does(together: Path) -> None:
    logs = {
        name: [orjson.loads(line) for line in (together / name / "log.jsonl").read_bytes().splitlines()]
        for name in ("replicated", "sharded", "resumed")
    }
    losses = {name: [row.get("loss", row.get("eval_loss")) for row in rows] for name, rows in logs.items()}
    assert len(losses["replicated"]) == 6  # held out before and after, and four steps
    assert losses["sharded"] == pytest.approx(losses["replicated"], rel=1e-5)
    assert losses["resumed"] == losses["sharded"]
    weights = {name: AutoModelForCausalLM.from_pretrained(together / name).state_dict() for name in logs}
    assert all(torch.equal(weights["resumed"][name], weights["sharded"][name]) for name in weights["sharded"])
    card = orjson.loads((together / "sharded" / "memorywalker.json").read_bytes())
    assert card["processes"] == 2
    assert sorted(p.name for p in (together / "sharded").iterdir()) == sorted(
        p.name for p in (together / "replicated").iterdir()
    )
