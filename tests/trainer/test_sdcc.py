"""SDCC as a scheme of train: naive-compressed plus lambda times the divergence from the live views.

Each test names the break that was seen to turn it red.
"""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from oracles import float64_model, gradients, worst
from torch import Tensor
from transformers import AutoModelForCausalLM

from trainer.conditioning import conditioned, diverging_tokens, legs
from trainer.engines import engine
from trainer.episodes import Episode
from trainer.losses import nll
from trainer.run import Trained, train
from trainer.schemes import plan
from trainer.settings import Settings
from trainer.sources import Source
from trainer.trie import Sample, TokenTrie

RUNNING = Episode.of(
    [
        Sample([], [1, 2, 3, 4, 5, 6, 7]),
        Sample([1, 2, 3, 4, 6, 7], [8, 9, 10]),
        Sample([1, 2, 3, 4, 6, 7, 9, 10], [11, 12]),
        Sample([1, 2, 3, 4, 6, 7, 9, 10, 12], [13]),
    ]
)
GROWN = Episode.of([Sample([1, 2], [3, 4]), Sample([1, 2, 3, 4, 5], [6])])
"""Nothing was evicted: every survivor has the context that it had."""


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_the_running_example_has_three_legs() -> None:
    """Red when a leg is cut at the survivor's place in the final walk."""
    found = legs(plan("sdcc", RUNNING))
    assert [None if s is None else (ids(s.prompt_ids), ids(s.completion_ids)) for s in found] == [
        None,
        ([1, 2, 3, 4, 5], [6, 7]),
        ([1, 2, 3, 4, 6, 7, 8], [9, 10]),
        ([1, 2, 3, 4, 6, 7, 9, 10, 11], [12]),
        None,
    ]
    assert diverging_tokens([plan("sdcc", RUNNING)]) == 5
    assert diverging_tokens([plan("sdcc", GROWN)]) == 0


@pytest.mark.parametrize("name", ["separate", "packed", "depth_first"])
def test_the_gradient_is_that_of_a_computation_by_hand(name: str) -> None:
    """Red when the teacher takes gradients, student and teacher change places, or lambda is left out."""
    model = float64_model()

    def log_LV(walk: list[int]) -> Tensor:
        found: Tensor = model(input_ids=torch.tensor([walk])).logits[0].log_softmax(-1)
        return found

    final = [1, 2, 3, 4, 6, 7, 9, 10, 12, 13]
    student = log_LV(final)
    task = -sum(student[at, final[at + 1]] for at in range(9)) / 9  # the first token has no context
    with torch.no_grad():
        teachers = [log_LV([1, 2, 3, 4, 5, 6])[4:6], log_LV([1, 2, 3, 4, 6, 7, 8, 9])[6:8]]
        teachers.append(log_LV([1, 2, 3, 4, 6, 7, 9, 10, 11])[8:9])
    teacher = torch.cat(teachers)
    divergence = (teacher.exp() * (teacher - student[[3, 4, 5, 6, 7]])).sum(-1).mean()
    loss = task + 0.3 * divergence
    torch.autograd.backward(loss)
    expected = gradients(model)

    one, chosen = plan("sdcc", RUNNING), engine(name)
    objective = conditioned([one], nll(), model=model, engine=chosen, strength=0.3)
    step = chosen.backward(model, TokenTrie.build(one.samples), objective=objective)

    assert float(step.loss) == pytest.approx(float(loss.detach()), abs=1e-12)
    assert step.stats["divergence"] == pytest.approx(float(divergence.detach()), abs=1e-12)
    assert worst(gradients(model), expected) < 1e-10


def test_the_teacher_gets_no_gradient() -> None:
    """Red when the teacher's states or its logits are computed with gradient."""
    model = copy.deepcopy(float64_model())
    one, chosen = plan("sdcc", RUNNING), engine("separate")
    objective: Any = conditioned([one], nll(), model=model, engine=chosen, strength=1.0)
    assert all(p.grad is None for p in model.parameters())
    assert not any(live.requires_grad for live in objective.live if live is not None)
    terms = objective.bind(
        TokenTrie.build(one.samples),
        trained_N=np.array([False] + [True] * 9),
        device=torch.device("cpu"),
        dtype=torch.float64,
    )
    assert not terms.teacher_CD.requires_grad


def test_the_teacher_drops_nothing_where_training_does() -> None:
    """Red when the legs are run in training mode: the divergence from a copy of itself is then not 0."""
    model = copy.deepcopy(float64_model())
    model.model.layers[0].mlp.act_fn = torch.nn.Sequential(torch.nn.SiLU(), torch.nn.Dropout(0.5))  # type: ignore[union-attr,index]
    model.train()
    chosen = engine("separate")
    first: Any = conditioned([plan("sdcc", RUNNING)], nll(), model=model, engine=chosen, strength=1.0)
    again: Any = conditioned([plan("sdcc", RUNNING)], nll(), model=model, engine=chosen, strength=1.0)
    assert all(torch.equal(a, b) for a, b in zip(first.live, again.live, strict=True) if a is not None)
    assert model.training


def test_tries_of_a_step_share_one_mean_over_their_diverging_tokens() -> None:
    """Red when each trie takes the mean over its own."""
    model, chosen = float64_model(), engine("depth_first")
    other = Episode.of([Sample([1, 2, 3], [4, 5]), Sample([1, 3, 4, 5, 6], [7, 8])])
    both = [plan("sdcc", RUNNING), plan("sdcc", other)]
    trie = TokenTrie.build(s for one in both for s in one.samples)
    whole = chosen.backward(model, trie, objective=conditioned(both, nll(), model=model, engine=chosen, strength=2.0))
    expected, loss = gradients(model), 0.0
    for one in both:
        objective = conditioned([one], nll(over=13), model=model, engine=chosen, strength=2.0, over=7)
        loss += float(chosen.backward(model, TokenTrie.build(one.samples), objective=objective).loss)
    assert loss == pytest.approx(float(whole.loss), abs=1e-12)
    assert worst(gradients(model), expected) < 1e-10


def trained(out: Path, episode: Episode, settings: Settings) -> Trained:
    return train(Source((episode,)), model="tiny", out=out, settings=settings)


@pytest.mark.parametrize(
    ("episode", "strength"), [(RUNNING, 0.0), (GROWN, 1.0)], ids=["lambda 0", "no diverging token"]
)
@pytest.mark.parametrize("name", ["separate", "packed", "depth-first"])
def test_without_a_term_the_run_is_that_of_naive_compressed_bit_for_bit(
    tmp_path: Path, episode: Episode, strength: float, name: str
) -> None:
    """Red when sdcc lays out another walk than naive-compressed, or its tokens count otherwise in the mean."""
    how = {"engine": name, "steps": 3, "learning_rate": 1e-2}
    plain = trained(tmp_path / "plain", episode, Settings("naive-compressed", **how))  # type: ignore[arg-type]
    ours = trained(tmp_path / "ours", episode, Settings("sdcc", sdcc_lambda=strength, **how))  # type: ignore[arg-type]
    assert ours.losses == plain.losses
    weights = [AutoModelForCausalLM.from_pretrained(tmp_path / name).state_dict() for name in ("plain", "ours")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_training_brings_the_final_walk_closer_to_the_live_view(tmp_path: Path) -> None:
    """Red when the sign of the divergence is turned round."""
    import orjson

    trained(tmp_path / "m", RUNNING, Settings("sdcc", sdcc_lambda=5.0, steps=8, learning_rate=3e-3))
    rows = [orjson.loads(line) for line in (tmp_path / "m" / "log.jsonl").read_bytes().splitlines()]
    assert rows[-1]["divergence"] < 0.9 * rows[0]["divergence"]
    assert "lambda 5" in (tmp_path / "m" / "README.md").read_text()


def ids(values: Any) -> list[int]:
    return [int(value) for value in values]
