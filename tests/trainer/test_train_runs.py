"""A training run from episodes to a checkpoint that others load: it learns, resumes exactly, and loses nothing."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback, TrainerControl, TrainerState

from recorder.errors import TrainError
from trainer.episodes import Episode
from trainer.losses import nll
from trainer.run import train
from trainer.settings import Schedule, Settings
from trainer.sources import Source
from trainer.tiny import tiny_model, tiny_tokenizer
from trainer.trie import Sample, TokenTrie

EXAMPLE = Source.of(
    [
        Sample([], [1, 2, 3, 4, 5, 6, 7]),
        Sample([1, 2, 3, 4, 6, 7], [8, 9, 10]),
        Sample([1, 2, 3, 4, 6, 7, 9, 10], [11, 12]),
        Sample([1, 2, 3, 4, 6, 7, 9, 10, 12], [13]),
    ],
    name="example",
)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def some_episodes(count: int, *, shared: bool = True) -> Source:
    """Rollouts of two calls each; with a trunk of ten tokens in common."""
    rng = np.random.default_rng(1)
    trunk = list(range(20, 30))
    found = []
    for number in range(count):
        first, own, second = (rng.integers(4, 900, size).tolist() for size in (4 + number, 3, 2))
        start = trunk if shared else rng.integers(4, 900, 10).tolist()
        calls = [Sample(start, first, rollout=number), Sample([*start, *own], second, rollout=number)]
        found.append(Episode.of(calls, name=f"rollout {number}"))
    return Source(tuple(found))


def weights(out: Path) -> dict[str, torch.Tensor]:
    return dict(AutoModelForCausalLM.from_pretrained(out).state_dict())


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("scheme", ["logittree", "naive-compressed", "naive-full", "mask4d", "sdcc"])
def test_the_loss_falls_under_every_scheme(tmp_path: Path, scheme: str) -> None:
    done = train(EXAMPLE, model="tiny", out=tmp_path / "m", settings=Settings(scheme, steps=20, learning_rate=1e-2))
    assert done.steps == 20
    assert len(done.losses) == 20
    assert done.losses[-1] < 0.1 * done.losses[0]


def test_the_first_loss_is_the_mean_over_trained_tokens(tmp_path: Path) -> None:
    done = train(EXAMPLE, model="tiny", out=tmp_path / "m", settings=Settings(steps=1))
    model = tiny_model(tiny_tokenizer("qwen3"), seed=0)
    total = 0.0
    for sample in EXAMPLE.episodes[0].samples:
        ids = torch.as_tensor(sample.ids(), dtype=torch.int64)
        with torch.no_grad():
            log_LV = model(input_ids=ids[None]).logits[0].log_softmax(-1)
        total -= sum(float(log_LV[i - 1, ids[i]]) for i in range(max(len(sample.prompt_ids), 1), len(ids)))
    assert done.losses[0] == pytest.approx(total / 12, rel=1e-5)  # 13 sampled; the very first has no context


def test_a_step_counts_every_token_alike_however_it_is_cut(tmp_path: Path) -> None:
    source = some_episodes(4)
    found = []
    for name, group, accumulate in (("one", 4, 1), ("two", 2, 2), ("four", 1, 4)):
        out = tmp_path / name
        settings = Settings(steps=1, group=group, accumulate=accumulate, learning_rate=1e-3, clip_gradient=0)
        done = train(source, model="tiny", out=out, settings=settings)
        found.append((done.losses[0], orjson.loads((out / "log.jsonl").read_bytes())["gradient_norm"]))
    assert [loss for loss, _ in found] == pytest.approx([found[0][0]] * 3, rel=1e-6)
    assert [norm for _, norm in found] == pytest.approx([found[0][1]] * 3, rel=1e-5)


class _Killed(TrainerCallback):  # type: ignore[misc]
    def on_step_end(self, args: object, state: TrainerState, control: TrainerControl, **kwargs: object) -> None:
        if state.global_step == 7:
            raise KeyboardInterrupt


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_a_resumed_run_ends_with_the_same_weights_bit_for_bit(
    tmp_path: Path, schedule: Schedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = some_episodes(5)
    settings = Settings(
        steps=10,
        learning_rate=1e-2,
        accumulate=2,
        save_steps=3,
        schedule=schedule,
        warmup_steps=2,
    )
    whole = train(source, model="tiny", out=tmp_path / "whole", settings=settings)
    with monkeypatch.context() as m:
        m.setattr("trainer.runlog.RunLog.on_step_end", _Killed.on_step_end, raising=False)
        with pytest.raises(KeyboardInterrupt):
            train(source, model="tiny", out=tmp_path / "cut", settings=settings)
    assert not (tmp_path / "cut").exists()
    rest = train(source, model="tiny", out=tmp_path / "cut", settings=settings, resume=True)
    assert rest.losses == whole.losses[6:]  # from checkpoint-6 on
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "cut"))
    assert not same(weights(tmp_path / "whole"), dict(tiny_model(tiny_tokenizer("qwen3"), seed=0).state_dict()))
    logs = [(tmp_path / name / "log.jsonl").read_bytes().splitlines() for name in ("whole", "cut")]
    assert [[orjson.loads(line)["loss"] for line in log] for log in logs] == [list(whole.losses)] * 2
    assert [orjson.loads(line)["step"] for line in logs[1]] == list(range(1, 11))


def test_a_run_resumes_only_with_the_data_and_settings_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as m:
        m.setattr("trainer.runlog.RunLog.on_step_end", _Killed.on_step_end, raising=False)
        with pytest.raises(KeyboardInterrupt):
            train(EXAMPLE, model="tiny", out=tmp_path / "m", settings=Settings(save_steps=3))
    with pytest.raises(TrainError, match="expected seed 0 to resume with, got 1"):
        train(EXAMPLE, model="tiny", out=tmp_path / "m", settings=Settings(save_steps=3, seed=1), resume=True)
    with pytest.raises(TrainError, match=r"expected data .* to resume with"):
        train(some_episodes(1), model="tiny", out=tmp_path / "m", settings=Settings(save_steps=3), resume=True)


def test_the_same_seed_gives_the_same_weights_and_another_seed_another_order(tmp_path: Path) -> None:
    source = some_episodes(6, shared=False)
    runs = {name: Settings(steps=4, learning_rate=1e-2, seed=seed) for name, seed in (("a", 1), ("b", 1), ("c", 2))}
    for name, settings in runs.items():
        train(source, model="tiny", out=tmp_path / name, settings=settings)
    assert same(weights(tmp_path / "a"), weights(tmp_path / "b"))
    assert not same(weights(tmp_path / "a"), weights(tmp_path / "c"))


def test_the_checkpoint_is_a_plain_hugging_face_model_with_its_tokenizer(tmp_path: Path) -> None:
    train(EXAMPLE, model="tiny", out=tmp_path / "m", settings=Settings(steps=2, save_steps=1))
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "m")
    assert type(model).__name__ == "LlamaForCausalLM"
    assert AutoTokenizer.from_pretrained(tmp_path / "m").chat_template
    names = {path.name for path in (tmp_path / "m").iterdir()}
    assert names == {
        *("config.json", "generation_config.json", "model.safetensors", "README.md", "memorywalker.json", "log.jsonl"),
        *("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"),
    }  # no checkpoint-N, no training_args.bin: pickles that hold this machine's paths
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_the_checkpoint_serves_as_it_is(tmp_path: Path) -> None:
    """What transformers' generate and vLLM look for: architecture, safetensors, tokenizer and template, stop tokens."""
    train(EXAMPLE, model="tiny", out=tmp_path / "m", settings=Settings(steps=1))
    config = orjson.loads((tmp_path / "m" / "config.json").read_bytes())
    assert (config["architectures"], config["model_type"], config["dtype"]) == (
        ["LlamaForCausalLM"],
        "llama",
        "float32",
    )
    header = (tmp_path / "m" / "model.safetensors").read_bytes()
    size = int.from_bytes(header[:8], "little")
    assert orjson.loads(header[8 : 8 + size])["__metadata__"] == {"format": "pt"}

    model, tokenizer = (kind.from_pretrained(tmp_path / "m") for kind in (AutoModelForCausalLM, AutoTokenizer))
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    messages = [{"role": "user", "content": "read the file"}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    out = model.generate(**prompt, max_new_tokens=3, do_sample=False)
    assert prompt["input_ids"].shape[1] < out.shape[1] <= prompt["input_ids"].shape[1] + 3


def test_the_card_says_scheme_engine_data_and_conservation(tmp_path: Path) -> None:
    source = Source(EXAMPLE.episodes, {"aborted": 4}, ("heads were shortened",))
    settings = Settings("naive-compressed", engine="separate", steps=1)
    card = train(source, model="tiny", out=tmp_path / "m", settings=settings).card
    assert (card.sampled_tokens, card.trained_tokens, card.lost_tokens) == (17, 9, 3)
    assert card.excused == {"aborted": 4, "no context: first token of an empty prompt": 1}
    text = (tmp_path / "m" / "README.md").read_text()
    assert text.startswith("---\nlibrary_name: transformers\n")
    for line in (
        "| scheme | naive-compressed |",
        "| engine | separate |",
        "| sampled | 17 |",
        "| trained | 9 |",
        "| lost by the scheme | 3 |",
        "| excused: aborted | 4 |",
        "Note: heads were shortened.",
        f"| example | {card.data[0][1]} |",
    ):
        assert line in text.splitlines()
    assert orjson.loads((tmp_path / "m" / "memorywalker.json").read_bytes())["trained_tokens"] == 9
    assert str(tmp_path) not in text


def test_a_data_hash_is_of_the_tokens_and_of_nothing_else() -> None:
    from trainer.card import digest

    one = Episode.of([Sample([1, 2], [3])], name="a")
    assert digest(one) == digest(Episode.of([Sample(np.array([1, 2]), [3], 0.5)], name="b"))
    assert digest(one) != digest(Episode.of([Sample([1], [2, 3])], name="a"))
    assert digest(one).startswith("b2:")


def test_a_run_refuses_to_replace_what_is_there(tmp_path: Path) -> None:
    out = tmp_path / "m"
    out.mkdir()
    (out / "precious").write_text("x")
    with pytest.raises(TrainError, match=r"expected a new directory, got .*--overwrite"):
        train(EXAMPLE, model="tiny", out=out)
    train(EXAMPLE, model="tiny", out=out, settings=Settings(steps=1), overwrite=True)
    assert not (out / "precious").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_an_unfinished_run_is_neither_lost_nor_taken_for_a_whole_one(tmp_path: Path) -> None:
    out = tmp_path / "m"
    (tmp_path / "m.unfinished").mkdir()
    with pytest.raises(TrainError, match=r"expected no unfinished run, got .*--resume"):
        train(EXAMPLE, model="tiny", out=out)
    shutil.rmtree(tmp_path / "m.unfinished")
    with pytest.raises(TrainError, match="expected an unfinished run to resume, got none"):
        train(EXAMPLE, model="tiny", out=out, resume=True)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (Settings("realign"), "scheme: expected one of logittree"),
        (Settings(engine="fast"), "engine must be one of auto, separate"),
    ],
)
def test_wrong_names_are_told_before_anything_is_written(tmp_path: Path, settings: Settings, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        train(EXAMPLE, model="tiny", out=tmp_path / "m", settings=settings)
    assert list(tmp_path.iterdir()) == []


def test_settings_refuse_what_cannot_train() -> None:
    with pytest.raises(ValueError, match="steps: expected at least 1, got 0"):
        Settings(steps=0)
    with pytest.raises(ValueError, match="learning rate: expected more than 0, got -1"):
        Settings(learning_rate=-1)


def test_a_source_without_sampled_tokens_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainError, match="expected sampled tokens to train on, got none in 1 episode"):
        train(Source.of([Sample([1, 2], [])]), model="tiny", out=tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


def test_a_loss_that_is_no_number_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoiled(self: object, args: object, state: object, control: object, **kwargs: Any) -> None:
        torch.nn.init.constant_(kwargs["model"].model.norm.weight, float("nan"))

    monkeypatch.setattr("trainer.runlog.RunLog.on_step_end", spoiled, raising=False)
    with pytest.raises(TrainError, match="step 2: expected a finite loss, got nan"):
        train(EXAMPLE, model="tiny", out=tmp_path / "m", settings=Settings(steps=3))
    assert list(tmp_path.iterdir()) == []  # nothing to resume from, so nothing is left


def test_grpo_moves_probability_by_advantage(tmp_path: Path) -> None:
    good = Sample([20, 21, 22], [30, 31], 1.0, rollout="good")
    bad = Sample([20, 21, 22], [40, 41], -1.0, rollout="bad")
    source = Source((Episode.of([good], name="good"), Episode.of([bad], name="bad")))
    settings = Settings(steps=5, group=2, objective="grpo", per="rollout", learning_rate=1e-3)
    train(source, model="tiny", out=tmp_path / "m", settings=settings)
    from trainer.engines import engine

    trie = TokenTrie.build([good, bad])
    before = engine("separate").logprobs(tiny_model(tiny_tokenizer("qwen3"), seed=0), trie)
    after = engine("separate").logprobs(AutoModelForCausalLM.from_pretrained(tmp_path / "m"), trie)
    assert float(after[0].sum()) > float(before[0].sum())
    assert float(after[1].sum()) < float(before[1].sum())
    assert "ratio" in orjson.loads((tmp_path / "m" / "log.jsonl").read_bytes().splitlines()[0])


def test_training_prints_nothing_where_nobody_looks(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train(EXAMPLE, model="tiny", out=tmp_path / "m", settings=Settings(steps=2, save_steps=1))
    assert capfd.readouterr() == ("", "")


def test_the_objective_divides_by_the_tokens_of_the_whole_step() -> None:
    """What the trainer relies on: two tries over their joint count give the gradient of the mean over both."""
    from trainer.engines import engine

    model = tiny_model(tiny_tokenizer("qwen3"), seed=0)
    first, second = Sample([5, 6], [7, 8, 9]), Sample([15, 16], [17])
    whole = engine("separate").backward(model, TokenTrie.build([first, second]), objective=nll()).loss
    parts = [
        engine("separate").backward(model, TokenTrie.build([s]), objective=nll(over=4)).loss for s in (first, second)
    ]
    assert float(sum(parts)) == pytest.approx(float(whole), rel=1e-6)
