"""TRL itself: one optimisation step on the exported rows has the gradient of the calls, each computed alone."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from chats import renderer
from datasets import load_dataset
from oracles import worst
from roundtrip import EARNED, called, forked, program
from torch import Tensor, nn
from transformers import TrainerCallback

from trainer.export import export, trl_grpo
from trainer.sample import Sample
from trainer.tiny import tiny_model

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
trl = pytest.importorskip("trl")
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")

TOLERANCE = 1e-5  # float32; the largest of a parameter's gradient is 1


class Gradients(TrainerCallback):  # type: ignore[misc]
    """What the trainer's backward pass left, just before its optimizer takes it."""

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, *, model: nn.Module, **_: object) -> None:
        self.taken = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]


def by_hand(samples: tuple[Sample, ...], *, advantages: bool) -> list[Tensor]:
    """Every call alone: the mean over sampled tokens of -log p, or of that times the advantage."""
    model: Any = tiny_model(renderer("qwen3").tokenizer)
    total, count = torch.zeros(()), 0
    for sample in samples:
        ids = torch.as_tensor(sample.ids(), dtype=torch.int64)
        logprobs = model(input_ids=ids[None]).logits[0, :-1].log_softmax(-1).gather(1, ids[1:, None])
        total = total - logprobs[len(sample.prompt_ids) - 1 :].sum() * (sample.advantage if advantages else 1.0)
        count += len(sample.completion_ids)
    torch.autograd.backward(total / count)
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]


def settings(folder: Path, rows: int) -> dict[str, object]:
    return {
        "output_dir": str(folder / "out"),
        "max_steps": 1,
        "per_device_train_batch_size": rows,
        "activation_checkpointing": False,
        "max_grad_norm": 0.0,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": True,
        "bf16": False,
    }


def test_a_step_of_sft_has_the_gradient_of_the_calls(tmp_path: Path) -> None:
    export([forked()], renderer("qwen3"), out=tmp_path / "d", format="trl-sft")
    files = str(tmp_path / "d" / "train*.parquet")
    rows = load_dataset("parquet", data_files=files, cache_dir=str(tmp_path / "cache"))["train"]
    gradients = Gradients()
    trl.SFTTrainer(
        tiny_model(renderer("qwen3").tokenizer),
        args=trl.SFTConfig(max_length=None, **settings(tmp_path, len(rows))),
        train_dataset=rows,
        processing_class=renderer("qwen3").tokenizer,
        callbacks=[gradients],
    ).train()
    assert worst(gradients.taken, by_hand(called(), advantages=False)) < TOLERANCE


def test_a_step_of_grpo_has_the_gradient_of_the_calls_times_their_advantages(tmp_path: Path) -> None:
    """The program in the format's docstring, as it stands there."""
    export([forked()], renderer("qwen3"), out=tmp_path / "d", format="trl-grpo", rollouts=EARNED)
    count = 6  # main; compacted; `ok` of agent 1, of agent 2, and the third's part of it; the third's end
    args = trl.GRPOConfig(num_generations=2, beta=0.0, **settings(tmp_path, 2 * count))
    names: dict[str, Any] = {
        "torch": torch,
        "load_dataset": load_dataset,
        "GRPOTrainer": trl.GRPOTrainer,
        "model": tiny_model(renderer("qwen3").tokenizer),
        "tokenizer": renderer("qwen3").tokenizer,
        "args": args,
    }
    exec(compile(program(trl_grpo, str(tmp_path / "d")), "trl_grpo", "exec"), names)
    assert len(names["rows"]) == count
    gradients = Gradients()
    names["trainer"].add_callback(gradients)
    names["trainer"].train()
    assert worst(gradients.taken, by_hand(called(), advantages=True)) < TOLERANCE
