"""Drift is 0 where contexts are right and well above it where they are not, and it says which edit is to blame."""

from functools import wraps
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from transformers import PreTrainedModel

from recorder.errors import TrainError
from trainer.drift import Drift, drift, json_rows, plot, table
from trainer.episodes import Episode
from trainer.liveview import divergence, hidden_states, logprobs
from trainer.sources import Source
from trainer.tiny import tiny_model, tiny_tokenizer
from trainer.trie import Sample

KINDS = ("root", "append", "cleared", "append", "summarized")


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return tiny_model(tiny_tokenizer(), seed=3)


def trace() -> Episode:
    """Five calls of 9 tokens: the third has lost the first's tool result; in the fifth the first two are a summary."""
    rng = np.random.default_rng(5)

    def some(count: int) -> list[int]:
        return [int(i) for i in rng.integers(4, 900, count)]

    head, result, reminder, more, summary = some(30), some(40), some(6), some(12), some(10)
    said = [some(9) for _ in range(5)]
    prompts = [
        head,
        head + said[0] + result,
        head + said[0] + said[1] + reminder,
        head + said[0] + said[1] + reminder + said[2] + more,
        head + summary + reminder + said[2] + more + said[3],
    ]
    samples = [Sample(p, s, rollout="r", thread="main") for p, s in zip(prompts, said, strict=True)]
    return Episode("trace", tuple(samples), KINDS)


@pytest.fixture(scope="module")
def found(model: PreTrainedModel) -> Drift:
    return drift(Source((trace(),)), model=model, engine="separate", kl=True)


def test_the_live_view_equals_the_model_on_each_whole_prefix(model: PreTrainedModel) -> None:
    samples = trace().samples
    for sample, got in zip(samples, logprobs(model, samples), strict=True):
        ids = torch.as_tensor(sample.ids(), dtype=torch.int64)
        with torch.no_grad():
            log_LV = model(input_ids=ids[None]).logits[0].log_softmax(-1)
        first = len(sample.prompt_ids)
        expected = [float(log_LV[i - 1, ids[i]]) for i in range(first, len(ids))]
        assert got.tolist() == pytest.approx(expected, abs=2e-5)


def test_the_live_view_computes_only_what_calls_do_not_share(
    model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[int] = []
    forward = model.model.forward

    @wraps(forward)
    def counting(input_ids: torch.Tensor, **kwargs: object) -> object:
        computed.append(input_ids.shape[1])
        return forward(input_ids=input_ids, **kwargs)

    monkeypatch.setattr(model.model, "forward", counting)
    hidden_states(model, [Sample([1, 2, 3, 4, 5], [6]), Sample([1, 2, 3, 4, 5, 6, 7], [8]), Sample([1, 2, 9], [10])])
    assert computed == [5, 2, 1]  # 1..5 | 6 7 | 9: the last sampled token predicts nothing that is scored


def test_a_first_token_without_context_is_not_a_number(model: PreTrainedModel) -> None:
    (got,) = logprobs(model, [Sample([], [4, 5])])
    assert got.isnan().tolist() == [True, False]


def test_logittree_sits_at_the_floor(found: Drift) -> None:
    row = found.row("logittree")
    assert row.max is not None
    assert row.max < 1e-5
    assert (row.tokens, row.lost, row.share) == (45, 0, 1.0)


@pytest.mark.parametrize("scheme", ["naive-compressed", "naive-full"])
def test_a_naive_scheme_stands_above_the_floor(found: Drift, scheme: str) -> None:
    mean = found.row(scheme).mean
    assert mean is not None
    assert mean > 1e-2


def test_naive_compressed_scores_only_what_is_left_at_the_end(found: Drift) -> None:
    row = found.row("naive-compressed")
    assert (row.tokens, row.lost, row.share) == (27, 18, 0.6)
    assert found.row("naive-compressed", "summarized").tokens == 18  # the third and fourth call's


def test_naive_full_is_wrong_from_the_first_eviction_on_and_says_which(found: Drift) -> None:
    tokens = {row.cause: row.tokens for row in found.rows if row.scheme == "naive-full"}
    assert tokens == {"": 45, "none": 18, "cleared": 18, "summarized": 9}


def test_tokens_in_a_right_context_do_not_drift_in_any_scheme(found: Drift) -> None:
    floors = [row.max for row in found.rows if row.cause == "none"]
    assert len(floors) == 3
    assert all(value is not None and value < 1e-5 for value in floors)


def test_the_first_edit_after_a_call_is_to_blame_under_naive_compressed(model: PreTrainedModel) -> None:
    head, said, gone = [11, 12, 13], [21, 22, 23], [31, 32]
    calls = [Sample(head + gone, said), Sample(head + said, [41]), Sample(head[1:] + said, [51])]
    row = drift(Source((Episode("x", tuple(calls), ("root", "cleared", "window_dropped")),)), model=model).rows
    blamed = {r.cause: r.tokens for r in row if r.scheme == "naive-compressed"}
    assert blamed == {"": 4, "none": 1, "cleared": 3}


def test_an_edit_of_unknown_kind_is_called_edit(model: PreTrainedModel) -> None:
    calls = [Sample([1, 2, 3], [4]), Sample([1, 3, 4], [5])]
    found = drift(Source.of(calls), model=model, schemes=["naive-full"])
    assert {row.cause for row in found.rows} == {"", "none", "edit"}


TEXT = {31: "ab", 32: "a", 33: "b", 34: "ba"}


@pytest.mark.parametrize(
    ("back", "cause"),
    [([32, 33], "retokenisation"), ([34], "template/client"), ([31], "none")],
    ids=["the same text", "another text", "the same tokens"],
)
def test_tokens_that_change_though_messages_only_grew_are_told_apart(
    model: PreTrainedModel, back: list[int], cause: str
) -> None:
    """`ab` sampled as one token comes back as two, or as another text: the first reply stands wrong in R_N. Red when
    texts are compared whole: what the next prompt adds behind is then a change."""
    calls = (Sample([11, 12], [31]), Sample([11, 12, *back, 13], [41]))
    source = Source((Episode("x", calls, ("root", "append")),))

    def decode(ids: list[int]) -> str:
        return "".join(TEXT.get(i, f"<{i}>") for i in ids)

    found = drift(source, model=model, schemes=["naive-full"], decode=decode)
    assert {row.cause for row in found.rows if row.cause} == {"none", cause}
    if cause != "none":
        untold = drift(source, model=model, schemes=["naive-full"])
        assert {row.cause for row in untold.rows if row.cause} == {"none", "rendering"}


def test_kl_is_zero_for_equal_contexts_and_positive_otherwise(found: Drift) -> None:
    assert found.row("logittree").kl == pytest.approx(0, abs=1e-6)
    for scheme in ("naive-compressed", "naive-full"):
        kl = found.row(scheme).kl
        assert kl is not None
        assert kl > 1e-3


def test_divergence_is_kl_by_hand(model: PreTrainedModel) -> None:
    rows = torch.randn(2, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        p, q = model.lm_head(rows[0]).double().softmax(-1), model.lm_head(rows[1]).double().softmax(-1)
    expected = float((p * (p / q).log()).sum())
    assert float(divergence(model, rows[:1], rows[1:])[0]) == pytest.approx(expected, rel=1e-4)


def test_served_logprobs_are_the_reference_where_calls_carry_them(model: PreTrainedModel) -> None:
    prompt, said = [5, 6, 7], [8, 9]
    (true,) = logprobs(model, [Sample(prompt, said)])
    off = [float(true[0]) + 0.5, float(true[1])]
    source = Source.of([Sample(prompt, said, 1.0, off), Sample([5, 6, 7, 8, 9, 10], [11])])
    found = drift(source, model=model, schemes=["logittree"])
    assert found.references == {"served": 2, "live view": 1}
    assert found.row("logittree").max == pytest.approx(0.5, abs=1e-5)
    assert drift(source, model=model, schemes=["logittree"], reference="live").row("logittree").max < 1e-5  # type: ignore[operator]
    with pytest.raises(ValueError, match="expected served logprobs on every call, got none on sample 1"):
        drift(source, model=model, reference="served")


def test_depth_and_frequency_count_evicted_context_tokens(model: PreTrainedModel) -> None:
    edited = Episode.of([Sample([1, 2, 3], [4]), Sample([1, 3, 4], [5])])  # of 1 2 3 4 5 the 2 went
    grown = Episode.of([Sample([1, 2], [3]), Sample([1, 2, 3, 4], [5])])
    found = drift(Source((edited, grown)), model=model, schemes=["logittree"])
    assert found.depth == pytest.approx(0.2)
    assert found.frequency == 0.5


def test_mask4d_is_compared_when_asked_for(model: PreTrainedModel) -> None:
    found = drift(Source((trace(),)), model=model, schemes=["mask4d"], kl=True)
    tokens = {row.cause: row.tokens for row in found.rows}
    assert tokens == {"": 45, "none": 18, "cleared": 18, "summarized": 9}
    floor, wrong = found.row("mask4d", "none").max, found.row("mask4d", "cleared").mean
    assert floor is not None
    assert wrong is not None
    assert floor < 1e-5 < 1e-3 < wrong  # the harness re-prefilled, so a kept copy is not what it had
    kl = found.row("mask4d", "cleared").kl
    assert kl is not None
    assert kl > 1e-3  # red when the distribution is that of the live view, whatever the scheme


def test_sdcc_has_the_contexts_of_naive_compressed(model: PreTrainedModel) -> None:
    found = drift(Source((trace(),)), model=model, schemes=["sdcc", "naive-compressed"], engine="separate")
    rows = {scheme: [r for r in found.rows if r.scheme == scheme] for scheme in ("sdcc", "naive-compressed")}
    assert [(r.cause, r.tokens, r.mean) for r in rows["sdcc"]] == [
        (r.cause, r.tokens, r.mean) for r in rows["naive-compressed"]
    ]


def test_rows_for_programs_carry_what_they_were_measured_on(found: Drift) -> None:
    rows = json_rows(found)
    assert rows[0]["scheme"] == "logittree"
    assert rows[0]["reference"] == "live view"
    assert [row["scheme"] for row in rows if row["cause"] == ""] == ["logittree", "naive-compressed", "naive-full"]
    assert set(rows[0]) >= {"mean", "p99", "max", "kl", "tokens", "lost", "share", "depth", "frequency", "notes"}


def test_the_table_has_a_line_a_scheme_and_a_line_a_cause(found: Drift) -> None:
    console = Console(width=120, record=True, file=StringIO())
    console.print(table(found))
    lines = console.export_text().splitlines()
    shown = [line.split("│")[1].strip() for line in lines if line.count("│") > 5]
    assert shown == [
        *("logittree", "none"),
        *("naive-compressed", "none", "summarized"),
        *("naive-full", "none", "cleared", "summarized"),
    ]


def test_a_scheme_without_tokens_shows_no_number(model: PreTrainedModel) -> None:
    row = drift(Source.of([Sample([], [4])]), model=model, schemes=["logittree"]).row("logittree")
    assert (row.tokens, row.mean, row.p99, row.max) == (0, None, None, None)


def test_without_a_session_to_compare_there_is_no_table(model: PreTrainedModel) -> None:
    with pytest.raises(TrainError, match="expected sampled tokens to compare, got none"):
        drift(Source(()), model=model)


def test_the_plot_is_a_picture(found: Drift, tmp_path: Path) -> None:
    plot(found, tmp_path / "drift.png")
    assert (tmp_path / "drift.png").read_bytes().startswith(b"\x89PNG")


def test_a_survivor_behind_a_hole_is_held_against_its_own_token(model: PreTrainedModel) -> None:
    before, after = Sample([11, 12], [21, 22, 23]), Sample([11, 12, 21, 23, 13], [31])  # 22 was cut out of the reply
    expected = abs(_logprob(model, [11, 12, 21, 22], 23) - _logprob(model, [11, 12, 21], 23))
    found = drift(Source.of([before, after]), model=model, schemes=["naive-compressed"])
    assert found.row("naive-compressed", "edit").max == pytest.approx(expected, abs=1e-5)
    assert (found.row("naive-compressed").tokens, found.row("naive-compressed").lost) == (3, 1)


def _logprob(model: PreTrainedModel, context: list[int], token: int) -> float:
    with torch.no_grad():
        return float(model(input_ids=torch.tensor([context])).logits[0, -1].log_softmax(-1)[token])
