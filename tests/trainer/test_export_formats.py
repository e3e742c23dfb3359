"""Each format read back the way its trainer reads it: the same tokens in the same contexts, masks, advantages.

The code in a format's docstring is what its users are told to run: it runs here. Where a trainer's own types are
needed for it, stand-ins have the fields that the trainer documents. TRL and datasets are the real ones
(test_export_trl.py). The same rows went once, by hand, through the trainers' own code with the same outcome: axolotl
0.19.0 `_is_dataset_already_tokenized`; LLaMA-Factory 0.9.5 `has_tokenized_data`, `get_dataset_module`; torchtune 0.6.1
`padded_collate_sft`; verl 0.9.1 `SFTTensorCollator`; SkyRL 0.3.0 `validate_generator_output` (step-wise),
`convert_prompts_responses_to_batch_tensors`; Tinker 0.38 `Datum`, `ModelInput`, `TensorData`; prime-rl's structs over
msgspec. slime's Sample was read, not run.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from chats import renderer
from datasets import Dataset, load_dataset, load_from_disk
from roundtrip import EARNED, Read, called, forked, program, sampled, trained

from trainer.export import FORMATS, export, prime_rl, skyrl, slime, tinker, torchtune, verl

IGNORED = -100


def written(folder: Path, format: str) -> Path:
    export([forked()], renderer("qwen3"), out=folder / "d", format=format, rollouts=EARNED)
    return folder / "d"


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]


def parquet(folder: Path) -> Dataset:
    """As `datasets` gives it, which most trainers read with."""
    files = str(folder / "train*.parquet")
    return load_dataset("parquet", data_files=files, split="train", cache_dir=str(folder.parent / "cache"))


def run(module: ModuleType, folder: Path, **names: object) -> dict[str, Any]:
    """What the docstring's code leaves behind."""
    exec(compile(program(module, str(folder)), module.__name__, "exec"), names)
    return names


def labelled(ids: list[int], labels: list[int]) -> Read:
    assert all(label in (IGNORED, id) for id, label in zip(ids, labels, strict=True))
    return Read(ids, [int(label != IGNORED) for label in labels])


def from_logittree(folder: Path) -> Iterator[Read]:
    """A row for each call that owns tokens of one: here a mask would not do."""
    for row in pq.read_table(folder / "rows.parquet").to_pylist():
        covered = [0] * len(row["input_ids"])
        for owner in row["owners"]:
            mask = [int(owner["start"] <= i < owner["stop"]) for i in range(len(row["input_ids"]))]
            yield Read(row["input_ids"], mask, [owner["advantage"] * m for m in mask], row["logprobs"])
            covered = [a + b for a, b in zip(covered, mask, strict=True)]
        assert [int(n > 0) for n in covered] == row["loss_mask"]
        assert row["advantages"] == [-0.5 * n for n in covered]
        assert (row["reward"], row["group"], row["rollout"]) == (0.0, "g", "s")


def from_tree(folder: Path) -> Iterator[Read]:
    (row,) = pq.read_table(folder / "tree.parquet").to_pylist()
    ids, before = row["input_ids"], row["before"]
    for owner in row["owners"]:
        walk: list[int] = []
        at = owner["offset"] + owner["length"] - 1
        while at >= 0:
            walk.append(ids[at])
            at = before[at]
        context = len(walk) - owner["length"]
        mask = [0] * context + [1] * owner["length"]
        logprobs = [None] * context + (owner["logprobs"] or [None] * owner["length"])
        yield Read(walk[::-1], mask, [owner["advantage"] * m for m in mask], logprobs)


def from_trl_sft(folder: Path) -> Iterator[Read]:
    for row in parquet(folder):
        read = labelled(row["input_ids"], row["labels"])
        assert row["completion_mask"] == read.mask
        yield read


def from_trl_grpo(folder: Path) -> Iterator[Read]:
    for row in parquet(folder):
        context = len(row["prompt_ids"])
        assert isinstance(row["prompt"], str)
        assert context > 0
        yield Read(
            row["prompt_ids"] + row["completion_ids"],
            [0] * context + row["env_mask"],
            [0.0] * context + row["advantages"],
            [None] * context + row["logprobs"],
        )


def from_axolotl(folder: Path) -> Iterator[Read]:
    rows = parquet(folder)
    assert rows.column_names == ["input_ids", "attention_mask", "labels"]
    for row in rows:
        assert row["attention_mask"] == [1] * len(row["input_ids"])
        yield labelled(row["input_ids"], row["labels"])


def from_llama_factory(folder: Path) -> Iterator[Read]:
    rows = load_from_disk(str(folder))
    assert isinstance(rows, Dataset)
    for row in rows:
        assert row["attention_mask"] == [1] * len(row["input_ids"])
        yield labelled(row["input_ids"], row["labels"])


def from_verl(folder: Path) -> Iterator[Read]:
    rows = run(verl, folder, torch=torch, load_dataset=load_dataset)["Rows"](str(folder / "train.parquet"))
    for item, row in zip((rows[i] for i in range(len(rows))), parquet(folder), strict=True):
        context = len(row["prompts"])
        ids = row["prompts"] + row["responses"]
        assert item["input_ids"].tolist() == ids
        assert item["loss_mask"].tolist() == [0] * context + row["response_mask"]
        assert item["position_ids"].tolist() == list(range(len(ids)))
        assert (row["uid"], row["reward"]) == ("g", 0.0)
        advantages = [0.0] * context + row["advantages"]
        yield Read(ids, item["loss_mask"].tolist(), advantages, [None] * context + row["rollout_log_probs"])


@dataclass
class TrainingAdvantage:
    loss: str
    values: list[float]
    mask: list[bool]


@dataclass
class TrainingSample:
    token_ids: list[int]
    mask: list[bool]
    logprobs: list[float]
    temperatures: list[float]
    env_name: str
    advantages: list[TrainingAdvantage]
    reward: float | None = None


def from_prime_rl(folder: Path) -> Iterator[Read]:
    class msgspec:
        class msgpack:
            encode = staticmethod(lambda batch: batch)

    names = run(
        prime_rl,
        folder,
        json=json,
        TrainingSample=TrainingSample,
        TrainingAdvantage=TrainingAdvantage,
        TrainingBatch=dict,
        msgspec=msgspec,
        Path=Path,
    )
    for one in names["batch"]["examples"]:
        assert len(one.token_ids) == len(one.mask) == len(one.logprobs) == len(one.temperatures)
        advantages, logprobs = [0.0] * len(one.mask), [None] * len(one.mask)
        covered = [False] * len(one.mask)
        for channel in one.advantages:
            assert len(channel.values) == len(channel.mask) == len(one.mask)
            for i in (i for i, m in enumerate(channel.mask) if m):
                advantages[i] = channel.values[i]
                logprobs[i] = one.logprobs[i] if channel.loss == "rl" else None
                assert not covered[i]
                covered[i] = True
        assert covered == one.mask
        yield Read(one.token_ids, [int(m) for m in one.mask], advantages, logprobs)


@dataclass
class Sample:
    """The fields of slime's that are written."""

    index: int
    group_index: int
    prompt: str
    tokens: list[int]
    response: str
    response_length: int
    loss_mask: list[int]
    reward: float
    rollout_log_probs: list[float] | None
    status: str
    metadata: dict[str, object] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Sample":
        return cls(**data)

    def to_dict(self) -> dict[str, Any]:
        return dict(self.__dict__)


def from_slime(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Read]:
    monkeypatch.chdir(folder.parent)
    run(slime, folder, json=json, Path=Path, torch=torch, Sample=Sample)
    samples = torch.load("rollout_0.pt", weights_only=False)["samples"]
    assert len({one["index"] for one in samples}) == len(samples)
    assert len({one["group_index"] for one in samples}) == 1
    for one in map(Sample.from_dict, samples):
        assert len(one.loss_mask) == one.response_length
        assert one.status == "completed"
        context = len(one.tokens) - one.response_length
        mask = [0] * context + one.loss_mask
        yield Read(one.tokens, mask, [one.reward * m for m in mask])


@dataclass(frozen=True)
class TrajectoryID:
    instance_id: str
    repetition_id: int


def from_skyrl(folder: Path) -> Iterator[Read]:
    names = run(skyrl, folder, json=json, Path=Path, TrajectoryID=TrajectoryID)
    output = names["output"]
    size = len(output["response_ids"])
    assert all(value is None or len(value) == size for value in output.values())
    assert output["is_last_step"] == [False] * (size - 1) + [True]
    assert len(set(output["trajectory_ids"])) == 1
    assert names["uids"] == ["g"] * size
    for i, row in enumerate(lines(folder)):
        context = len(output["prompt_token_ids"][i])
        mask = output["loss_masks"][i]
        assert len(output["rewards"][i]) == len(mask) == len(output["response_ids"][i])
        logprobs = row["rollout_logprobs"] or [None] * len(mask)
        yield Read(
            output["prompt_token_ids"][i] + output["response_ids"][i],
            [0] * context + mask,
            [0.0] * context + row["advantages"],
            [None] * context + logprobs,
        )


@dataclass
class TensorData:
    data: list[float]
    dtype: str
    shape: list[int]


@dataclass
class ModelInput:
    chunks: list[dict[str, Any]]


@dataclass
class Datum:
    model_input: ModelInput
    loss_fn_inputs: dict[str, TensorData]


def from_tinker(folder: Path) -> Iterator[Read]:
    names = run(tinker, folder, TensorData=TensorData, ModelInput=ModelInput, Datum=Datum)
    for row in lines(folder):
        given = row["loss_fn_inputs"]
        datum = names["datum"](row, given)
        (chunk,) = datum.model_input.chunks
        assert chunk["type"] == "encoded_text"
        inputs = {name: one.data for name, one in datum.loss_fn_inputs.items()}
        assert all(len(data) == len(chunk["tokens"]) == given[n]["shape"][0] for n, data in inputs.items())
        assert {n: one.dtype for n, one in datum.loss_fn_inputs.items() if n != "logprobs"} == {
            "target_tokens": "int64",
            "weights": "float32",
            "advantages": "float32",
        }
        # what each position predicts is the token behind it
        ids = [chunk["tokens"][0], *inputs["target_tokens"]]
        assert ids[:-1] == chunk["tokens"]
        logprobs = inputs.get("logprobs", [None] * len(chunk["tokens"]))
        yield Read(ids, [0, *map(int, inputs["weights"])], [0.0, *inputs["advantages"]], [None, *logprobs])


def from_torchtune(folder: Path) -> Iterator[Read]:
    rows = run(torchtune, folder)["rows"](None, str(folder / "train.parquet"))
    for row in rows:
        assert list(row) == ["tokens", "labels"]
        yield labelled(row["tokens"], row["labels"])


READERS: dict[str, Callable[[Path], Iterator[Read]]] = {
    "logittree": from_logittree,
    "tree": from_tree,
    "trl-sft": from_trl_sft,
    "trl-grpo": from_trl_grpo,
    "axolotl": from_axolotl,
    "llama-factory": from_llama_factory,
    "verl": from_verl,
    "prime-rl": from_prime_rl,
    "skyrl": from_skyrl,
    "tinker": from_tinker,
    "torchtune": from_torchtune,
}
WHOLE_ROWS = {"slime", "skyrl", "tinker"}
"""Their logprobs are of all trained tokens of a row or of none."""


@pytest.mark.parametrize("format", [*READERS, "slime"])
def test_what_is_read_back_trains_what_was_sampled(
    format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = written(tmp_path, format)
    rows = from_slime(folder, monkeypatch) if format == "slime" else READERS[format](folder)
    chosen = FORMATS[format]
    logprobs = chosen.logprobs and format not in WHOLE_ROWS
    assert trained(rows) == sampled(advantages=chosen.advantages, logprobs=logprobs)


def test_the_fixture_has_what_masks_cannot_say() -> None:
    """Two calls that sampled the same in the same context: their tokens count twice."""
    assert len(called()) == 7
    assert sorted(n for n in sampled().values() if n > 1) == [2, 3, 3]  # "o" and "k" by three, their stop token by two


@pytest.mark.parametrize("format", ["slime", "skyrl", "tinker", "prime-rl"])
def test_logprobs_of_a_row_that_was_served_whole_come_along(format: str, tmp_path: Path) -> None:
    from chats import reply, turn, user

    from recorder.message import Served
    from treebuilder.tree import Kind, Trajectory

    served = Served(None, (5, 6), (-0.5, -0.25))
    one = turn(0, user("hi"), reply=reply("x", served=served), kind=Kind.ROOT)
    export([Trajectory((one,))], renderer("qwen3"), out=tmp_path / "d", format=format)
    (row,) = lines(tmp_path / "d")
    found = {
        "slime": lambda: row["rollout_log_probs"],
        "skyrl": lambda: row["rollout_logprobs"],
        "tinker": lambda: row["loss_fn_inputs"]["logprobs"]["data"][-2:],
        "prime-rl": lambda: row["logprobs"][-2:],
    }[format]()
    assert found == [-0.5, -0.25]


def test_every_format_names_what_it_read_and_how_it_is_loaded() -> None:
    for format in FORMATS.values():
        document = __import__(format.records.__module__, fromlist=["x"]).__doc__
        assert document
        assert format.name in ("logittree", "tree", "messages") or "Read from:" in " ".join(document.split()), (
            format.name
        )
