"""What the options of a run do: adapters, evaluation, precision, clipping, schedules, events, objectives, a reference.

Each test names the break that was seen to turn it red.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import torch
from transformers import AutoModelForCausalLM, TrainerState

from recorder.errors import TrainError
from trainer.engines import engine
from trainer.episodes import Episode
from trainer.held_out import split
from trainer.run import train
from trainer.settings import Settings
from trainer.sources import Source
from trainer.tiny import tiny_model, tiny_tokenizer
from trainer.trie import Sample, TokenTrie


def rollouts(count: int) -> Source:
    """Two calls each behind a shared prompt of ten tokens; even ones earned more."""
    rng = np.random.default_rng(1)
    found = []
    for number in range(count):
        first, own, second = (rng.integers(4, 900, size).tolist() for size in (4 + number, 3, 2))
        start, advantage = list(range(20, 30)), 1.0 if number % 2 == 0 else -1.0
        calls = [Sample(start, first, advantage), Sample([*start, *own], second, advantage)]
        found.append(Episode.of(calls, name=f"rollout {number}"))
    return Source(tuple(found))


def log_of(out: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in (out / "log.jsonl").read_bytes().splitlines()]


def steps_of(out: Path) -> list[dict[str, Any]]:
    return [row for row in log_of(out) if "loss" in row]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_evaluation_is_the_mean_over_held_out_tokens_in_their_own_contexts(tmp_path: Path) -> None:
    """Red when held-out episodes are laid out by the scheme that trains."""
    held = Source.of([Sample([1, 2, 3], [4, 5]), Sample([1, 3, 4, 5, 6], [7, 8, 9])], name="held out")
    settings = Settings("naive-compressed", steps=4, eval_steps=2, learning_rate=1e-2)
    done = train(rollouts(2), model="tiny", out=tmp_path / "m", settings=settings, held_out=held)

    model, total = tiny_model(tiny_tokenizer("qwen3")), 0.0
    for sample in held.episodes[0].samples:
        ids = torch.as_tensor(sample.ids(), dtype=torch.int64)
        with torch.no_grad():
            log_LV = model(input_ids=ids[None]).logits[0].log_softmax(-1)
        total -= sum(float(log_LV[i - 1, ids[i]]) for i in range(len(sample.prompt_ids), len(ids)))
    assert done.eval_losses[0] == pytest.approx(total / 5, rel=1e-5)
    assert [(r["step"], r["eval_tokens"]) for r in log_of(tmp_path / "m") if "eval_loss" in r] == [
        (0, 5),
        (2, 5),
        (4, 5),
    ]
    assert done.card.eval_losses == done.eval_losses
    assert [name for name, _ in done.card.eval_data] == ["held out"]
    assert f"| held-out loss, before and after | {done.eval_losses[0]:.4f}, " in (tmp_path / "m/README.md").read_text()


def test_a_split_holds_whole_rollouts_out_and_counts_them(tmp_path: Path) -> None:
    """Red when the tokens held out are not among the excused."""
    source = rollouts(5)
    training, held = split(source, share=0.4, seed=0)
    names = [{e.name for e in part.episodes} for part in (training, held)]
    assert (len(names[0]), len(names[1])) == (3, 2)
    assert names[0] | names[1] == {f"rollout {n}" for n in range(5)}
    card = train(training, model="tiny", out=tmp_path / "m", settings=Settings(steps=1), held_out=held).card
    assert card.sampled_tokens == source.sampled_tokens
    assert card.excused == {"held out for evaluation": held.sampled_tokens}
    with pytest.raises(TrainError, match=r"expected two families of episodes at least to split 0\.4 off, got 1"):
        split(rollouts(1), share=0.4, seed=0)


@pytest.mark.parametrize(
    ("name", "chunk"), [("depth-first", None), ("depth-first", 4), ("packed", None), ("separate", None)]
)
def test_bfloat16_computes_what_float32_does_to_its_own_precision(tmp_path: Path, name: str, chunk: int | None) -> None:
    """Red when attention of ours takes what autocast would have cast as it comes."""
    rows = []
    for bf16 in (False, True):
        out = tmp_path / str(bf16)
        settings = Settings(engine=name, chunk_tokens=chunk, steps=1, group=3, bf16=bf16)
        train(rollouts(3), model="tiny", out=out, settings=settings)
        rows.append(steps_of(out)[0])
        assert {p.dtype for p in AutoModelForCausalLM.from_pretrained(out).parameters()} == {torch.float32}
    assert rows[1]["loss"] == pytest.approx(rows[0]["loss"], rel=0.01)
    assert rows[1]["loss"] != rows[0]["loss"]
    assert rows[1]["gradient_norm"] == pytest.approx(rows[0]["gradient_norm"], rel=0.03)


def test_a_clipped_step_is_shorter_and_says_what_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when the limit is not handed on."""
    given: list[float] = []

    def seen(self: object, args: object, state: object, control: object, **kwargs: Any) -> None:
        given.append(float(torch.cat([p.grad.flatten() for p in kwargs["model"].parameters()]).norm()))

    monkeypatch.setattr("trainer.runlog.RunLog.on_pre_optimizer_step", seen, raising=False)
    logged = []
    for limit in (0.0, 0.01):
        train(rollouts(1), model="tiny", out=tmp_path / str(limit), settings=Settings(steps=1, clip_gradient=limit))
        logged.append(steps_of(tmp_path / str(limit))[0]["gradient_norm"])
    assert logged[0] == pytest.approx(logged[1], rel=1e-5)
    assert given == pytest.approx([logged[0], 0.01], rel=1e-3)


def test_the_learning_rate_warms_up_and_follows_its_schedule(tmp_path: Path) -> None:
    """Red when warmup is not handed on. Logged is the rate for the step to come, as transformers has it."""
    settings = Settings(steps=5, learning_rate=1e-2, schedule="linear", warmup_steps=2)
    train(rollouts(1), model="tiny", out=tmp_path / "m", settings=settings)
    rates = [row["learning_rate"] for row in steps_of(tmp_path / "m")]
    assert rates == pytest.approx([0.0, 0.005, 0.01, 0.01 * 2 / 3, 0.01 / 3])


def test_events_for_tensorboard_hold_what_the_log_does(tmp_path: Path) -> None:
    """Red when evaluation is not written."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    settings = Settings(steps=2)
    train(rollouts(1), model="tiny", out=tmp_path / "m", settings=settings, held_out=rollouts(1), tensorboard=True)
    events = EventAccumulator(str(tmp_path / "m" / "tensorboard"))
    events.Reload()
    losses = [(e.step, e.value) for e in events.Scalars("loss")]
    assert losses == [(row["step"], pytest.approx(row["loss"])) for row in steps_of(tmp_path / "m")]
    assert [e.step for e in events.Scalars("eval_loss")] == [0, 2]


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # asked for by peft
def test_adapters_train_and_the_weights_do_not(tmp_path: Path) -> None:
    """Red when the adapters are left frozen."""
    from peft import PeftModel

    base = tiny_model(tiny_tokenizer("qwen3"))
    before = {name: value.clone() for name, value in base.state_dict().items()}
    settings = Settings(steps=6, lora=4, learning_rate=1e-2)
    done = train(rollouts(1), model=base, out=tmp_path / "m", settings=settings, tokenizer=tiny_tokenizer("qwen3"))
    assert done.losses[-1] < 0.9 * done.losses[0]
    assert done.card.adapter == "LoRA of rank 4"
    names = {path.name for path in (tmp_path / "m").iterdir()}
    assert names >= {"adapter_model.safetensors", "adapter_config.json", "tokenizer.json", "README.md"}
    assert "model.safetensors" not in names
    assert "library_name: peft" in (tmp_path / "m" / "README.md").read_text()

    again = tiny_model(tiny_tokenizer("qwen3"))
    assert all(torch.equal(value, before[name]) for name, value in again.state_dict().items())
    loaded = PeftModel.from_pretrained(again, tmp_path / "m")
    trie = TokenTrie.build(rollouts(1).episodes[0].samples)
    loss = -float(torch.cat(engine("separate").logprobs(loaded, trie)).mean())
    assert loss < done.losses[-1]  # one more update than the last loss saw


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # asked for by peft
def test_merged_adapters_leave_a_plain_model_that_says_the_same(tmp_path: Path) -> None:
    """Red when the adapters are dropped instead of merged."""
    from peft import PeftModel

    for merge in (False, True):
        settings = Settings(steps=4, lora=4, merge=merge, learning_rate=1e-2)
        train(rollouts(1), model="tiny", out=tmp_path / str(merge), settings=settings)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "True")
    assert type(plain).__name__ == "LlamaForCausalLM"
    assert "library_name: transformers" in (tmp_path / "True" / "README.md").read_text()
    base = tiny_model(tiny_tokenizer("qwen3"))
    ids = torch.tensor([[20, 21, 22, 23]])
    with torch.no_grad():
        before = base(ids).logits
        adapted = PeftModel.from_pretrained(base, tmp_path / "False")(ids).logits
        assert float((plain(ids).logits - adapted).abs().max()) < 1e-4
        assert float((plain(ids).logits - before).abs().max()) > 1e-2


@pytest.mark.parametrize("lora", [0, 4])
def test_a_resumed_run_is_the_whole_run_with_every_option(
    tmp_path: Path, lora: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights, optimizer, order, warmup and held-out losses: red when the order is drawn anew on resuming."""
    settings = Settings(
        steps=6, group=2, accumulate=2, lora=lora, save_steps=2, eval_steps=3, schedule="cosine", learning_rate=1e-2
    )
    source, held = rollouts(7), rollouts(1)

    def run(out: Path, *, resume: bool = False) -> Any:
        return train(source, model="tiny", out=out, settings=settings, held_out=held, resume=resume)

    whole = run(tmp_path / "whole")
    with monkeypatch.context() as m:
        m.setattr("trainer.runlog.RunLog.on_step_end", _killed, raising=False)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "cut")
    rest = run(tmp_path / "cut", resume=True)
    assert rest.losses == whole.losses[4:]
    assert rest.eval_losses == whole.eval_losses
    weights = "adapter_model.safetensors" if lora else "model.safetensors"
    assert (tmp_path / "cut" / weights).read_bytes() == (tmp_path / "whole" / weights).read_bytes()
    logs = [[{**row, "elapsed_s": 0} for row in log_of(tmp_path / name)] for name in ("whole", "cut")]
    assert logs[0] == logs[1]


def _killed(self: object, args: object, state: TrainerState, control: object, **kwargs: object) -> None:
    if state.global_step == 5:
        raise KeyboardInterrupt


def test_grpo_logs_what_its_ratios_and_the_entropy_were(tmp_path: Path) -> None:
    """Red when only the last trie of a step is reported."""
    settings = Settings(steps=1, objective="grpo", accumulate=2, beta=0.1)
    train(rollouts(2), model="tiny", out=tmp_path / "m", settings=settings)
    (row,) = steps_of(tmp_path / "m")
    tokens = rollouts(2).sampled_tokens
    assert (row["tokens"], row["weight"]) == (tokens, pytest.approx(tokens))
    assert row["ratio"] == row["ratio_max"] == pytest.approx(1)
    assert row["clipped"] == row["sampling_kl"] == 0
    assert row["kl"] == pytest.approx(0, abs=1e-6)  # the reference is the model as it starts
    assert 0 < row["entropy"] < np.log(len(tiny_tokenizer("qwen3")))


def test_grpo_leaves_the_reference_only_as_far_as_beta_allows(tmp_path: Path) -> None:
    """Red when beta is not handed on."""
    far = {}
    for beta in (0.01, 10.0):
        settings = Settings(steps=5, objective="grpo", group=2, beta=beta, learning_rate=3e-3)
        train(rollouts(2), model="tiny", out=tmp_path / str(beta), settings=settings)
        far[beta] = steps_of(tmp_path / str(beta))[-1]["kl"]
    assert far[0.01] > 2 * far[10.0] > 0


def test_another_model_can_be_the_reference(tmp_path: Path) -> None:
    """Red when the reference given is not the one used."""
    other = tiny_model(tiny_tokenizer("qwen3"), seed=1)
    settings = Settings(steps=1, objective="grpo", group=2, beta=0.1)
    train(rollouts(2), model="tiny", out=tmp_path / "m", settings=settings, reference=other)
    assert steps_of(tmp_path / "m")[0]["kl"] > 0.1


def test_a_rollout_counts_once_however_it_forked_and_wherever_it_lies(tmp_path: Path) -> None:
    """Red when samples without a rollout's name count for themselves: three calls would then be three rollouts."""
    forked = Episode.of([Sample([20, 21], [30, 31], 1.0), Sample([20, 22], [32], 1.0), Sample([20, 23], [33], 1.0)])
    plain = Episode.of([Sample([20, 24], [34], -1.0)])
    source = Source((forked, plain))
    model = tiny_model(tiny_tokenizer("qwen3"))

    def nll_of(prompt: list[int], completion: list[int]) -> float:
        with torch.no_grad():
            log_LV = model(torch.tensor([prompt + completion])).logits[0].log_softmax(-1)
        return -float(sum(log_LV[len(prompt) - 1 + at, token] for at, token in enumerate(completion)))

    mean = (nll_of([20, 21], [30, 31]) + nll_of([20, 22], [32]) + nll_of([20, 23], [33])) / 4
    expected = (mean + nll_of([20, 24], [34])) / 2
    for group, accumulate in ((2, 1), (1, 2)):
        out = tmp_path / str(group)
        settings = Settings(steps=1, per="rollout", group=group, accumulate=accumulate)
        assert train(source, model="tiny", out=out, settings=settings).losses[0] == pytest.approx(expected, rel=1e-5)


def test_grpo_without_rewards_is_refused(tmp_path: Path) -> None:
    """Red when advantages of 1 that nobody gave are trained on."""
    source = Source.of([Sample([1, 2], [3])])
    with pytest.raises(TrainError, match=r"^grpo: expected rewards, got none in 1 episodes; memorywalker reward"):
        train(source, model="tiny", out=tmp_path / "m", settings=Settings(objective="grpo"))
    alone = Source.of([Sample([1, 2], [3], 0.0, reward=5.0)])
    with pytest.raises(TrainError, match=r"^grpo: expected rollouts that earned more .*, got advantage 0 in all 1 "):
        train(alone, model="tiny", out=tmp_path / "m", settings=Settings(objective="grpo"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("scheme", "name"),
    [
        *(("logittree", name) for name in ("auto", "separate", "packed", "depth-first")),
        *(("naive-compressed", name) for name in ("auto", "separate", "packed", "depth-first")),
        *(("naive-full", name) for name in ("auto", "separate", "packed", "depth-first")),
        *(("sdcc", name) for name in ("auto", "separate", "packed", "depth-first")),
        ("mask4d", "auto"),
    ],
)
def test_the_weights_of_a_step_add_up_to_its_trained_tokens(tmp_path: Path, scheme: str, name: str) -> None:
    """Red when a step leaves tokens out that the card counts."""
    settings = Settings(scheme, engine=name, steps=1, accumulate=3, group=2)
    card = train(rollouts(5), model="tiny", out=tmp_path / "m", settings=settings).card
    (row,) = steps_of(tmp_path / "m")
    assert row["weight"] == row["tokens"] == card.trained_tokens


def test_settings_say_what_is_wrong_with_them() -> None:
    for wrong, says in (
        ({"merge": True}, r"merge: expected adapters to merge \(lora\), got none"),
        ({"lora": 4, "sharded": True}, "lora: expected whole weights on each process, got shards"),
        ({"beta": -1.0}, "beta: expected 0 or more, got -1"),
    ):
        with pytest.raises(ValueError, match=says):
            replace(Settings(), **wrong)
