"""mask4d is a decoder that keeps its keys and values across evictions, and is not what a harness that re-prefills gets.

Seen red, each by hand once: keys left where they were born (`rotated` returns its keys); kept tokens handed out in the
order of the stream instead of the view; all of an epoch's keys visible to all its queries; epochs joined over an edit.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import float64_model, gradients, keeping_decoder, real_model, worst
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from trainer.engines import engine
from trainer.engines.mask4d import epochs
from trainer.losses import nll
from trainer.physical import stream
from trainer.trie import Kept, Sample, TokenTrie

ANS = 99
RUNNING = [
    Sample([], [1, 2, 3, 4, 5, 6, 7]),
    Sample([1, 2, 3, 4, 6, 7], [8, 9, 10]),
    Sample([1, 2, 3, 4, 6, 7, 9, 10], [11, 12]),
    Sample([1, 2, 3, 4, 6, 7, 9, 10, 12], [ANS]),
]


def decoded(model: nn.Module, samples: list[Sample], *, renumber: bool = True) -> list[Tensor]:
    """Logprobs of the sampled tokens, each read off the token before it in its call's view."""
    one = stream(samples)
    views = [view.tolist() for view in one.views]
    log_HV = keeping_decoder(model, views, one.ids_H.tolist(), renumber=renumber)
    found = []
    for sample, view in zip(samples, views, strict=True):
        first = max(len(sample.prompt_ids), 1)
        pairs = [(view[at - 1], int(one.ids_H[view[at]])) for at in range(first, len(view))]
        found.append(torch.stack([log_HV[before, token] for before, token in pairs]) if pairs else torch.zeros(0))
    return found


def check(samples: list[Sample]) -> None:
    model = float64_model()
    expected = decoded(model, samples)
    loss = -torch.cat(expected).mean()
    torch.autograd.backward(loss)
    expected_gradients = gradients(model)

    step = engine("mask4d").backward(model, TokenTrie.build(samples), objective=nll())

    assert abs(float(step.loss - loss.detach())) < 1e-12
    for ours, theirs in zip(step.logprobs, expected, strict=True):
        assert torch.allclose(ours[len(ours) - len(theirs) :], theirs.detach(), rtol=0, atol=1e-12)
    assert worst(gradients(model), expected_gradients) < 1e-10


def test_the_running_example_is_a_decoder_that_keeps_its_keys() -> None:
    check(RUNNING)


def test_a_summary_put_before_a_kept_tail_is_a_decoder_that_keeps_its_keys() -> None:
    """The tail was encoded before the summary in front of it was there."""
    check(
        [
            Sample([1, 2, 3, 4, 5, 6], [7, 8]),
            Sample([1, 2, 50, 51, 6, 7, 8, 9], [10, 11]),
            Sample([1, 2, 50, 8, 12], [13]),
        ]
    )


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_any_evictions(data: st.DataObject) -> None:
    samples: list[Sample] = []
    fresh = iter(range(100))
    view: list[int] = []
    for _ in range(data.draw(st.integers(1, 4))):
        alive = [data.draw(st.booleans() | st.just(True)) for _ in view]
        survivors = [at for at, keep in enumerate(alive) if keep]
        prompt = [view[at] for at in survivors] + [next(fresh) for _ in range(data.draw(st.integers(1, 4)))]
        completion = [next(fresh) for _ in range(data.draw(st.integers(1, 4)))]
        kept = tuple(Kept(at, place, 1) for place, at in enumerate(survivors))
        samples.append(Sample(prompt, completion, kept=kept))
        view = prompt + completion
    check(samples)


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gpt_neox"])
def test_with_nothing_evicted_it_is_the_plain_sequence(kind: str) -> None:
    model = real_model(kind)
    trie = TokenTrie.build([Sample([1, 2], [3, 4]), Sample([1, 2, 3, 4, 5], [6, 7])])

    plain, single = engine("separate").logprobs(model, trie), engine("mask4d").logprobs(model, trie)

    assert all(torch.allclose(a, b, rtol=0, atol=1e-6) for a, b in zip(plain, single, strict=True))


def test_on_a_prefix_that_is_encoded_anew_it_differs_from_logittree() -> None:
    """METHOD.md section 3, measured: kept tokens have seen what was evicted."""
    model = float64_model()
    trie = TokenTrie.build(RUNNING)
    exact, single = engine("separate").logprobs(model, trie), engine("mask4d").logprobs(model, trie)

    assert torch.allclose(exact[0][1:], single[0][1:], rtol=0, atol=1e-12), "before the first edit they agree"
    assert min(float((a - b).abs().max()) for a, b in zip(exact[1:], single[1:], strict=True)) > 1e-3


def test_positions_are_assigned_anew_after_an_edit() -> None:
    model = float64_model()
    single = engine("mask4d").logprobs(model, TokenTrie.build(RUNNING))
    left = decoded(model, RUNNING, renumber=False)

    assert float((single[2] - left[2].detach()).abs().max()) > 1e-3


def test_epochs_of_the_running_example() -> None:
    assert [
        (e.new_L.tolist(), e.rank_L.tolist(), e.kept_J.tolist(), e.rank_J.tolist()) for e in epochs(stream(RUNNING))
    ] == [
        ([0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 3, 4, 5, 6], [], []),
        ([7, 8, 9], [6, 7, 8], [0, 1, 2, 3, 5, 6], [0, 1, 2, 3, 4, 5]),
        ([10, 11], [8, 9], [0, 1, 2, 3, 5, 6, 8, 9], [0, 1, 2, 3, 4, 5, 6, 7]),
        ([12], [9], [0, 1, 2, 3, 5, 6, 8, 9, 11], [0, 1, 2, 3, 4, 5, 6, 7, 8]),
    ]


def test_calls_that_append_share_an_epoch() -> None:
    (epoch,) = epochs(stream([Sample([1], [2]), Sample([1, 2, 3], [4])]))

    assert epoch.new_L.tolist() == [0, 1, 2, 3]


def test_learned_positions_are_refused() -> None:
    model = GPT2LMHeadModel(GPT2Config(vocab_size=101, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0))

    with pytest.raises(ValueError, match="GPT2Model has no rotary embedding of its own"):
        engine("mask4d").logprobs(model, TokenTrie.build([Sample([1], [2])]))


def test_threads_do_not_see_each_other() -> None:
    """Red when all samples are laid into one stream."""
    model = float64_model()
    main, agent = Sample([1, 2], [3, 4]), Sample([5, 2, 3], [7], thread="agent")
    both = engine("mask4d").logprobs(model, TokenTrie.build([main, agent]))

    assert np.allclose(both[0], engine("mask4d").logprobs(model, TokenTrie.build([main]))[0], rtol=0, atol=1e-12)
    assert np.allclose(both[1], engine("mask4d").logprobs(model, TokenTrie.build([agent]))[0], rtol=0, atol=1e-12)
