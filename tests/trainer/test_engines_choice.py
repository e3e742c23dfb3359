"""Which engine runs where, and what is said when it is not the one asked for."""

from __future__ import annotations

import logging

import pytest
import torch
from oracles import by_hand, float64_model, gradients, worst
from torch import nn
from transformers import MambaConfig, MambaForCausalLM, MistralConfig, MistralForCausalLM

from trainer.engines import NAMES, engine
from trainer.engines.auto import choose
from trainer.engines.depth_first import DepthFirst
from trainer.engines.separate import Separate
from trainer.losses import nll
from trainer.trie import Sample, TokenTrie

FORKED = [Sample([1, 2, 3, 4, 5, 6], [7, 8]), Sample([1, 2, 3, 4, 9, 9], [7, 8])]
SMALL = {"vocab_size": 101, "hidden_size": 16, "num_hidden_layers": 2}


def sliding(window: int) -> nn.Module:
    torch.manual_seed(0)
    heads = {"intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1}
    model: nn.Module = MistralForCausalLM(MistralConfig(**SMALL, **heads, sliding_window=window, initializer_range=0.3))
    return model.double().eval()


@pytest.mark.parametrize("name", ["packed", "depth_first", "auto"])
def test_a_sliding_window_shorter_than_a_branch_falls_back_and_is_right(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Red when `obstacle` does not look at the window: the explicit masks then switch it off."""
    model = sliding(3)
    loss, _ = by_hand(model, FORKED)
    expected = gradients(model)
    with caplog.at_level(logging.WARNING):
        step = engine(name).backward(model, TokenTrie.build(FORKED), objective=nll())

    assert "sliding window of 3 tokens, shorter than the longest branch of 8" in step.engine
    assert float(step.loss) == pytest.approx(float(loss), abs=1e-6)
    assert worst(gradients(model), expected) < 1e-6


@pytest.mark.parametrize("name", ["packed", "depth_first"])
def test_a_sliding_window_no_branch_reaches_is_shared(name: str) -> None:
    """Red when every window is an obstacle."""
    model = sliding(8)
    loss, _ = by_hand(model, FORKED)
    expected = gradients(model)
    step = engine(name).backward(model, TokenTrie.build(FORKED), objective=nll())

    assert step.engine == name
    assert float(step.loss) == pytest.approx(float(loss), abs=1e-6)
    assert worst(gradients(model), expected) < 1e-6


@pytest.mark.parametrize("name", ["packed", "depth_first"])
def test_a_recurrent_backbone_falls_back_and_says_so_once(
    name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red when neither its state nor its missing position_ids is an obstacle."""
    monkeypatch.setattr("trainer.engines.separate._said", set())
    torch.manual_seed(0)
    model = MambaForCausalLM(MambaConfig(**SMALL, state_size=4))
    loss, _ = by_hand(model, FORKED)
    expected = gradients(model)
    with caplog.at_level(logging.WARNING):
        steps = [engine(name).backward(model, TokenTrie.build(FORKED), objective=nll()) for _ in range(2)]

    assert float(steps[0].loss) == pytest.approx(float(loss), abs=1e-5)
    assert worst([g / 2 for g in gradients(model)], expected) < 1e-4
    assert steps[0].engine.startswith(f"separate instead of {name}: MambaModel")
    assert len([r for r in caplog.records if f"separate instead of {name}: MambaModel" in r.message]) == 1


def test_auto_on_cpu_goes_depth_first_and_says_why() -> None:
    """Red when the reason is dropped."""
    step = engine("auto").backward(float64_model(), TokenTrie.build(FORKED), objective=nll())
    gradients(float64_model())

    assert step.engine == "depth_first (auto: R = 1.33, 12 tokens on cpu, 50% of separate's work)"


def test_auto_shares_nothing_where_there_is_nothing_to_share() -> None:
    """Red when R is not looked at."""
    chosen, why = choose(float64_model(), TokenTrie.build(FORKED[:1]))

    assert (chosen, why) == (Separate(), "R = 1.00, nothing to share")


def test_auto_recomputes_in_chunks_where_memory_is_short() -> None:
    """Red when free memory is not looked at."""
    chosen, why = choose(float64_model(), TokenTrie.build(FORKED), free_bytes=10_000)

    assert chosen == DepthFirst(chunk_tokens=4096)
    assert "a path of 8 does not fit: recomputing in chunks of 4096" in why


@pytest.mark.parametrize("name", NAMES)
def test_a_trie_of_nothing_trains_nothing(name: str) -> None:
    """Red when an engine calls the model without tokens."""
    step = engine(name).backward(float64_model(), TokenTrie.build([Sample([1, 2], [])]), objective=nll())

    assert float(step.loss) == 0
    assert [len(logprobs) for logprobs in step.logprobs] == [0]


def test_gradient_checkpointing_does_not_drop_the_path() -> None:
    """Red when `sharing` leaves checkpointing on: transformers then throws the cache away."""
    model = sliding(8).train()
    loss, _ = by_hand(model, FORKED)
    expected = gradients(model)
    model._set_gradient_checkpointing()  # type: ignore[operator]
    step = DepthFirst(kernels=False).backward(model, TokenTrie.build(FORKED), objective=nll())

    assert float(step.loss) == pytest.approx(float(loss), abs=1e-6)
    assert worst(gradients(model), expected) < 1e-6
    assert model.model.gradient_checkpointing  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "chunk_tokens", "message"),
    [
        ("paged", None, "engine must be one of auto, separate, packed, depth_first, mask4d; got 'paged'"),
        ("depth_first", 0, "chunk_tokens must be at least 1; got 0"),
    ],
)
def test_what_is_no_engine_is_refused(name: str, chunk_tokens: int | None, message: str) -> None:
    """Red when the checks are taken out."""
    with pytest.raises(ValueError, match=message):
        engine(name, chunk_tokens=chunk_tokens)
