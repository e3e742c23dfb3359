"""What a run says while it goes: a JSON line a step in its directory, and a progress bar where stderr is a terminal."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import orjson
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

TRAINERS_OWN = ("loss", "learning_rate", "grad_norm", "epoch")
"""What transformers logs of a step; the rest comes from the objective."""


class RunLog(TrainerCallback):  # type: ignore[misc]
    """Stdout stays the command's own. A resumed run keeps the lines up to its checkpoint and goes on behind them."""

    def __init__(self, path: Path, *, steps: int) -> None:
        self.path = path
        self.steps = steps
        self.losses: list[float] = []
        """One per optimizer step of this process."""
        self._began_s = time.monotonic()
        self._open = ExitStack()
        self._bar: tuple[Progress, TaskID] | None = None

    def __enter__(self) -> RunLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    @property
    def first_loss(self) -> float:
        """Of the whole run, resumed or not."""
        lines = self.path.read_bytes().splitlines()
        return float(orjson.loads(lines[0])["loss"])

    @property
    def last_loss(self) -> float:
        lines = self.path.read_bytes().splitlines()
        return float(orjson.loads(lines[-1])["loss"])

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        lines = self.path.read_bytes().splitlines(keepends=True) if state.global_step and self.path.exists() else []
        self.path.write_bytes(b"".join(line for line in lines if orjson.loads(line)["step"] <= state.global_step))
        self._began_s = time.monotonic()
        if sys.stderr.isatty():
            columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
            bar = self._open.enter_context(Progress(*columns, console=Console(stderr=True), transient=True))
            self._bar = bar, bar.add_task("train", total=self.steps, completed=state.global_step)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: object,
    ) -> None:
        if logs is None or "loss" not in logs:  # the closing summary, not a step
            return
        self.losses.append(logs["loss"])
        row = {
            "step": state.global_step,
            "loss": logs["loss"],
            "learning_rate": logs["learning_rate"],
            "gradient_norm": logs.get("grad_norm"),
            "elapsed_s": round(time.monotonic() - self._began_s, 3),
            **{name: value for name, value in logs.items() if name not in TRAINERS_OWN},
        }
        with self.path.open("ab") as f:
            f.write(orjson.dumps(row) + b"\n")
        if self._bar:
            bar, task = self._bar
            bar.update(task, advance=1, description=f"loss {logs['loss']:.4f}")
