"""Loss curves of seeded runs on a recorded session, one a scheme: a change in what is trained shows here first.

`python tests/trainer/test_golden.py` writes goldens/curves.json anew; read its diff.
"""

import tempfile
from pathlib import Path

import orjson
import pytest
import torch

from recorder.importing import import_path
from recorder.store import Store
from trainer.render import Renderer
from trainer.run import train
from trainer.schemes import SCHEMES
from trainer.settings import Settings
from trainer.sources import Source, from_trajectories
from trainer.tiny import tiny_tokenizer
from treebuilder.build import build

CURVES = Path(__file__).parent / "goldens" / "curves.json"
CAPTURE = Path(__file__).parents[1] / "captures" / "opencode" / "serve_revert_anthropic.har"
SHOWN = ("loss", "gradient_norm", "tokens", "divergence")
TOLERANCE = 2e-3  # ours: of float32 kernels on other processors, after eight steps of Adam


def source(folder: Path) -> Source:
    """A rewound session with its fork: a branch of it was replaced."""
    with Store.open(folder / "traces.db") as store:
        import_path(store, CAPTURE)
        trajectory = build(store.calls())
    return from_trajectories([trajectory], Renderer(tiny_tokenizer("qwen3")), max_head_tokens=20)


def curve(scheme: str, folder: Path) -> list[dict[str, float]]:
    settings = Settings(
        scheme, steps=8, learning_rate=3e-3, schedule="cosine", warmup_steps=2, accumulate=2, seed=1, cpu=True
    )
    train(source(folder), model="tiny", out=folder / "m", settings=settings)
    rows = [orjson.loads(line) for line in (folder / "m" / "log.jsonl").read_bytes().splitlines()]
    return [{name: row[name] for name in SHOWN if name in row} for row in rows]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_seeded_run_takes_the_course_it_took(scheme: str, tmp_path: Path) -> None:
    expected = orjson.loads(CURVES.read_bytes())[scheme]
    found = curve(scheme, tmp_path)
    assert len(found) == len(expected)
    for step, (ours, theirs) in enumerate(zip(found, expected, strict=True), 1):
        assert ours == pytest.approx(theirs, rel=TOLERANCE), f"step {step}"


if __name__ == "__main__":
    torch.set_num_threads(1)
    found = {}
    for name in SCHEMES:
        with tempfile.TemporaryDirectory() as where:
            found[name] = curve(name, Path(where))
    CURVES.parent.mkdir(exist_ok=True)
    CURVES.write_bytes(orjson.dumps(found, option=orjson.OPT_INDENT_2) + b"\n")
