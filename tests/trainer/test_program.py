"""The README's Python as users run it: any engine, either objective, a plain transformers model in any state it is in.

What it must give is computed here by transformers and autograd alone.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GPTNeoXConfig, LlamaConfig, Qwen3Config

README = Path(__file__).parents[2] / "README.md"
SAMPLES = [  # (prompt, completion, advantage, logprobs): a fork, a shared start, a prompt that a reply grew into
    ([1, 2, 3], [4, 5], 1.0, None),
    ([1, 2, 3, 4, 5, 6], [7], 1.0, None),
    ([1, 2, 6], [8, 9, 10], -0.5, [-3.0, -2.0, -4.5]),
    ([11], [1, 2], 0.25, [-4.0, -5.0]),
]
SIZES = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
CONFIGS: dict[str, Any] = {
    "llama": LlamaConfig(**SIZES),
    "qwen3": Qwen3Config(**SIZES, num_key_value_heads=1, head_dim=8),
    "gpt_neox": GPTNeoXConfig(**SIZES),
}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def a_model(kind: str, folder: Path, *, dtype: torch.dtype = torch.float64) -> Any:
    """As a user loads one: from a folder, in the mode that from_pretrained leaves it in."""
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(CONFIGS[kind]).save_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)


def program(objective: str, engine: str) -> str:
    """The README's lines from the samples on, with other ids, engine and objective."""
    (text,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    # what it says of recordings is run by tests/test_readme.py
    text = "".join(s for s in text.splitlines(keepends=True) if s.startswith(("from trainer", "trie", "step")))
    (built,) = re.findall(r"TokenTrie\.build\(\[.*?\]\)\n", text)
    samples = ", ".join(
        f"Sample(prompt_ids={p}, completion_ids={c}, advantage={a}, logprobs={lp})" for p, c, a, lp in SAMPLES
    )
    text = text.replace(built, f"TokenTrie.build([{samples}])\n")
    assert 'engine("depth_first", chunk_tokens=4096)' in text
    assert "objective=nll()" in text
    text = text.replace("import nll", "import grpo, nll").replace("objective=nll()", f"objective={objective}")
    return text.replace('engine("depth_first", chunk_tokens=4096)', engine)


def run(model: Any, *, objective: str = "nll()", engine: str = 'engine("depth_first", chunk_tokens=4096)') -> Any:
    names: dict[str, Any] = {"model": model}
    exec(compile(program(objective, engine), "README.md", "exec"), names)
    return names


def by_hand(model: Any, objective: str) -> tuple[float, list[torch.Tensor], list[torch.Tensor]]:
    """Loss, logprobs per sample, gradients: every call by itself, whole logits, autograd."""
    terms, logprobs = [], []
    for prompt, completion, advantage, old in SAMPLES:
        ids = torch.tensor([prompt + completion])
        log_LV = model(input_ids=ids).logits[0, :-1].log_softmax(-1)
        found = log_LV.gather(1, ids[0, 1:, None])[len(prompt) - 1 :, 0]
        logprobs.append(found.detach())
        if objective == "nll()":
            terms.append(-found)
            continue
        ratio = (found - (found.detach() if old is None else torch.tensor(old))).exp()
        terms.append(-torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage))
    loss = torch.cat(terms).mean() if objective == "nll()" else torch.stack([t.mean() for t in terms]).mean()
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    return float(loss.detach()), logprobs, list(gradients)


ENGINES = (
    'engine("depth_first", chunk_tokens=4096)',
    'engine("depth_first", chunk_tokens=2)',
    'engine("depth_first")',
    'engine("packed")',
    'engine("separate")',
    'engine("auto")',
)


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("objective", ["nll()", "grpo()"])
@pytest.mark.parametrize("engine", ENGINES)
def test_the_lines_give_what_autograd_gives(kind: str, objective: str, engine: str, tmp_path: Path) -> None:
    model = a_model(kind, tmp_path)
    loss, logprobs, gradients = by_hand(model, objective)
    names = run(model, objective=objective, engine=engine)
    step = names["step"]
    # float64, but for the norms and rotary angles that transformers computes in float32
    assert float(step.loss) == pytest.approx(loss, abs=1e-6)
    assert [tuple(one.shape) for one in step.logprobs] == [(2,), (1,), (3,), (2,)]
    for ours, theirs in zip(step.logprobs, logprobs, strict=True):
        assert float((ours - theirs).abs().max()) < 1e-6
    for parameter, expected in zip(model.parameters(), gradients, strict=True):
        assert float((parameter.grad - expected).abs().max()) < 1e-6 * max(1.0, float(expected.abs().max()))
    trie = names["trie"]
    # branches 1 2 3 4 5 6 7 | 1 2 6 8 9 10 | 11 1 2; of these 1 2 is shared by two
    assert (trie.branch_tokens, trie.unique_tokens) == (16, 14)
    assert [list(row.ids) for row in trie.rows()] == [[1, 2, 3, 4, 5, 6, 7], [1, 2, 6, 8, 9, 10], [11, 1, 2]]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_gradients_are_added_to_those_there_and_the_mode_is_left_as_it_was(
    engine: str, training: bool, tmp_path: Path
) -> None:
    model = a_model("llama", tmp_path).train(training)
    _, _, gradients = by_hand(model, "nll()")
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    run(model, engine=engine)
    assert model.training is training
    for parameter, expected in zip(model.parameters(), gradients, strict=True):
        assert float((parameter.grad - 1 - expected).abs().max()) < 1e-6


@pytest.mark.parametrize("engine", ENGINES)
def test_a_float32_model_gives_float32_gradients(engine: str, tmp_path: Path) -> None:
    model = a_model("qwen3", tmp_path, dtype=torch.float32)
    loss, _, gradients = by_hand(model, "nll()")
    step = run(model, engine=engine)["step"]
    assert float(step.loss) == pytest.approx(loss, rel=1e-5)
    for parameter, expected in zip(model.parameters(), gradients, strict=True):
        assert parameter.grad.dtype == torch.float32
        assert float((parameter.grad - expected).abs().max()) < 1e-5


def test_logprobs_carry_no_graph_and_a_second_call_gives_the_same(tmp_path: Path) -> None:
    model = a_model("llama", tmp_path)
    first, again = run(model)["step"], run(model)["step"]
    assert not any(one.requires_grad for one in first.logprobs)
    assert not first.loss.requires_grad
    assert float(first.loss) == float(again.loss)
