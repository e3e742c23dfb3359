"""What a run says while it goes: a JSON line a step in its directory, TensorBoard's events where asked for, and a bar.

Only the first of several processes speaks; the bar is on stderr, where that is a terminal.
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import orjson
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from recorder.errors import TrainError

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

TRAINERS_OWN = ("loss", "learning_rate", "grad_norm", "epoch")
"""What transformers logs of a step; the rest comes from the objective."""
EVENTS = "tensorboard"


class RunLog(TrainerCallback):  # type: ignore[misc]
    """Stdout stays the command's own. A resumed run keeps the lines up to its checkpoint and goes on behind them."""

    def __init__(self, folder: Path, *, steps: int, tensorboard: bool = False, first: bool = True) -> None:
        """`first`: this process is the one that speaks."""
        self.path = folder / "log.jsonl"
        self.steps = steps
        self.tensorboard = tensorboard
        self.first = first
        self.losses: list[float] = []
        """One per optimizer step of this process."""
        self.eval_losses: list[float] = []
        """Of the whole run, resumed or not."""
        self._began_s = time.monotonic()
        self._open = ExitStack()
        self._bar: tuple[Progress, TaskID] | None = None
        self._writer: SummaryWriter | None = None

    def __enter__(self) -> RunLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    @property
    def first_loss(self) -> float:
        """Of the whole run, resumed or not."""
        return float(self._rows("loss")[0]["loss"])

    @property
    def last_loss(self) -> float:
        return float(self._rows("loss")[-1]["loss"])

    def _rows(self, name: str) -> list[dict[str, float]]:
        rows = [orjson.loads(line) for line in self.path.read_bytes().splitlines()]
        return [row for row in rows if name in row]

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        self._began_s = time.monotonic()
        if not self.first:
            return
        lines = self.path.read_bytes().splitlines(keepends=True) if state.global_step and self.path.exists() else []
        self.path.write_bytes(b"".join(line for line in lines if orjson.loads(line)["step"] <= state.global_step))
        self.eval_losses = [row["eval_loss"] for row in self._rows("eval_loss")]
        if self.tensorboard:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError as e:
                raise TrainError(f"expected the package tensorboard, got {e}; pip install tensorboard") from e
            self._writer = SummaryWriter(str(self.path.parent / EVENTS), purge_step=state.global_step + 1)
            self._open.callback(self._writer.close)
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
        if logs is not None and "eval_loss" in logs:
            self.eval_losses.append(logs["eval_loss"])
            self._write({"step": state.global_step, "eval_loss": logs["eval_loss"], "eval_tokens": logs["eval_tokens"]})
        if logs is None or "loss" not in logs:  # the closing summary, not a step
            return
        self.losses.append(logs["loss"])
        self._write(
            {
                "step": state.global_step,
                "loss": logs["loss"],
                "learning_rate": logs["learning_rate"],
                "gradient_norm": logs.get("grad_norm"),
                "elapsed_s": round(time.monotonic() - self._began_s, 3),
                **{name: value for name, value in logs.items() if name not in TRAINERS_OWN},
            }
        )
        if self._bar:
            bar, task = self._bar
            bar.update(task, advance=1, description=f"loss {logs['loss']:.4f}")

    def _write(self, row: dict[str, float | None]) -> None:
        if not self.first:
            return
        with self.path.open("ab") as f:
            f.write(orjson.dumps(row) + b"\n")
        if self._writer is not None:
            for name, value in row.items():
                if name != "step" and value is not None:
                    self._writer.add_scalar(name, value, row["step"])
