"""Kinds of models: computed exactly, or refused in one line. Tiny and random, held against one plain call per sample.

Seen red, each by hand once: the scale left off the logits; `window` looking for one name; `_interface` letting a
mask pass; `obstacle` without the probe; the random state not put back; a longrope branch cut behind its last predictor.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

import pytest
import torch
from oracles import VOCABULARY, by_hand, gradients, worst
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from trainer.engines import engine
from trainer.engines.depth_first import DepthFirst
from trainer.engines.packed import Packed
from trainer.engines.separate import Separate
from trainer.engines.step import Engine
from trainer.losses import nll
from trainer.trie import Sample, TokenTrie

FORKED = [
    Sample([1, 2, 3, 4, 5, 6], [7, 8]),
    Sample([1, 2, 3, 4, 9, 9], [7, 8]),
    Sample([1, 2, 3, 4, 9, 9, 7, 8, 11, 12], [13]),
]
ENGINES: dict[str, Engine] = {
    "separate": Separate(),
    "packed": Packed(),
    "packed, dense mask": Packed(kernels=False),
    "depth first": DepthFirst(bush_tokens=4),
    "depth first, chunks of 3": DepthFirst(bush_tokens=0, chunk_tokens=3),
    "depth first, caches and masks": DepthFirst(bush_tokens=0, kernels=False),
}
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}


def made(kind: str, **fields: Any) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**SMALL, **fields}))
    return model.eval()


def check(model: nn.Module, one: Engine, samples: list[Sample] = FORKED) -> str:
    """What the engine calls itself, its loss and gradients being those of plain calls."""
    loss, _ = by_hand(model, samples)
    expected = gradients(model)
    step = one.backward(model, TokenTrie.build(samples), objective=nll())

    assert float(step.loss) == pytest.approx(float(loss), abs=1e-5)
    assert worst(gradients(model), expected) < 3e-4
    return step.engine


def rope(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10_000.0, **more}, "max_position_embeddings": 8}


LLAMA3 = {
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 4,
}
SHARED: dict[str, tuple[str, dict[str, Any]]] = {
    "tied embeddings, biases": ("llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    "yarn": ("llama", rope("yarn", factor=4.0, original_max_position_embeddings=4)),
    "llama3 angles": ("llama", rope("llama3", **LLAMA3)),
    "linear angles": ("llama", rope("linear", factor=2.0)),
    "dynamic angles, short": ("llama", rope("dynamic", factor=2.0) | {"max_position_embeddings": 11}),
    "windows that no branch reaches": ("gemma3_text", {"sliding_window": 11, "head_dim": 8}),
    "soft caps, eager attention": ("gemma2", {"sliding_window": 11, "head_dim": 8, "final_logit_softcapping": 2.0}),
    "logits scaled": ("cohere", {"logit_scale": 0.25}),
    "logits divided": ("granite", {"logits_scaling": 4.0}),
    "experts": ("mixtral", EXPERTS),
    "experts, normed heads": ("qwen3_moe", EXPERTS | {"head_dim": 8}),
    "biases of qwen2": ("qwen2", {}),
    "latent attention": ("deepseek_v3", LATENT | {"num_key_value_heads": 4, "first_k_dense_replace": 2}),
    "two attentions a layer": ("diffllama", {}),
    "a mask of its own": ("doge", {}),
    "learned positions": ("gpt2", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 16}),
}


@cache
def shared(name: str) -> tuple[nn.Module, float, list[torch.Tensor]]:
    kind, fields = SHARED[name]
    model = made(kind, **fields)
    loss, _ = by_hand(model, FORKED)
    return model, float(loss), gradients(model)


@pytest.mark.parametrize("one", ENGINES.values(), ids=ENGINES.keys())
@pytest.mark.parametrize("kind", SHARED)
def test_prefixes_are_shared(kind: str, one: Engine) -> None:
    model, loss, expected = shared(kind)
    step = one.backward(model, TokenTrie.build(FORKED), objective=nll())

    assert float(step.loss) == pytest.approx(loss, abs=1e-5)
    assert worst(gradients(model), expected) < 3e-4
    assert not step.engine.startswith("separate instead")


HYBRID = {"linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
APART: dict[str, tuple[str, dict[str, Any], str]] = {
    "every layer slides": ("qwen2", {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 0}, "3 tok"),
    "one layer slides": ("gemma3_text", {"sliding_window": 3, "head_dim": 8}, "a sliding window of 3 tokens"),
    "a window of another name": (
        "gpt_neo",
        {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 3},
        "a sliding window of 3 tokens",
    ),
    "layers of two kinds": ("qwen3_next", EXPERTS | HYBRID | {"num_hidden_layers": 4}, "recurrent state"),
    "convolutions": ("lfm2", {"layer_types": ["conv", "full_attention"]}, "Lfm2Model"),
    "a recurrence": ("mamba", {"state_size": 4}, "MambaModel"),
    "no cache taken": ("openai-gpt", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 16}, "something else"),
    "positions by distance": ("bloom", {"n_layer": 2, "n_head": 4}, "BloomModel takes no position_ids"),
}


@pytest.mark.parametrize("name", ["packed", "depth_first"])
@pytest.mark.parametrize(("kind", "fields", "why"), APART.values(), ids=APART.keys())
def test_prefixes_are_not_shared_and_that_is_said(
    kind: str, fields: dict[str, Any], why: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, logger="transformers"):
        said = check(made(kind, **fields), engine(name))

    assert said.startswith(f"separate instead of {name}: ")
    assert why in said


def test_angles_by_length_are_those_of_the_whole_branch() -> None:
    """Two branches of 8 and 11 tokens, both longer than 7: red when what predicts nothing is cut off the first."""
    long = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4, "original_max_position_embeddings": 7}
    model = made("phi3", **rope("longrope", **long) | {"original_max_position_embeddings": 7})

    said = check(model, engine("depth_first"), [FORKED[0], FORKED[2]])
    assert said == "separate instead of depth_first: Phi3Model rotates by the length of the sequence (longrope)"


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "not causal": ("bert", {}, "expected"),
    "a layer before the head": ("modernbert-decoder", {}, "ModernBertDecoderForCausalLM computes them otherwise"),
    "angles by what came before": (
        "llama",
        rope("dynamic", factor=2.0),
        r"LlamaModel rotates by the longest sequence it has met \(dynamic\): expected branches within the 8 tokens",
    ),
}


@pytest.mark.parametrize("name", ["separate", "packed", "depth_first", "mask4d", "auto"])
@pytest.mark.parametrize(("kind", "fields", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_no_engine_computes_is_refused(kind: str, fields: dict[str, Any], message: str, name: str) -> None:
    with pytest.raises(ValueError, match=message):
        engine(name).backward(made(kind, **fields), TokenTrie.build(FORKED), objective=nll())


def test_the_loss_of_a_router_is_left_out_and_that_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """transformers adds it to its own loss, which no engine calls. Red when nothing is logged."""
    model = made("mixtral", **EXPERTS, output_router_logits=True)
    with caplog.at_level(logging.WARNING):
        assert check(model, Packed()) == "packed"

    assert "MixtralModel: the loss of its router is left out; the objective alone is trained" in caplog.messages


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft asks transformers for it
@pytest.mark.parametrize("one", ENGINES.values(), ids=ENGINES.keys())
def test_adapters_get_the_gradient_and_the_weights_below_none(one: Engine) -> None:
    model: Any = get_peft_model(made("llama").double(), LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.3)

    check(model, one)
    one.backward(model, TokenTrie.build(FORKED), objective=nll())
    assert {n.split(".")[-3] for n, p in model.named_parameters() if p.grad is not None} == {"lora_A", "lora_B"}


@pytest.mark.parametrize("one", ENGINES.values(), ids=ENGINES.keys())
@pytest.mark.parametrize("how", ["weights", "autocast"])
def test_half_precision_rounds_and_no_more(how: str, one: Engine) -> None:
    """Held against itself in float32: a hundredth of the largest gradient is what bfloat16's eight bits leave."""
    model = made("llama", initializer_range=0.1)
    loss, _ = by_hand(model, FORKED)
    expected = gradients(model)
    if how == "weights":
        model = model.bfloat16()
    with torch.autocast("cpu", torch.bfloat16, enabled=how == "autocast"):
        step = one.backward(model, TokenTrie.build(FORKED), objective=nll())
    ours = [gradient.float() for gradient in gradients(model)]

    assert float(step.loss) == pytest.approx(float(loss), abs=0.02)
    assert float((torch.cat([g.flatten() for g in ours]) - flat(expected)).norm() / flat(expected).norm()) < 0.03


def flat(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])


def test_dropout_falls_twice_alike_where_a_unit_is_computed_twice() -> None:
    """The gradient is that of the loss as it fell: held against a difference quotient under the same seed."""
    model = made("llama", attention_dropout=0.3).double().train()
    trie, one = TokenTrie.build(FORKED), DepthFirst(bush_tokens=0, chunk_tokens=2)
    weights = [parameter for parameter in model.parameters() if parameter.dim() == 2]
    torch.manual_seed(1)
    along = [torch.randn_like(weight) for weight in weights]

    def loss(step: float) -> float:
        for weight, direction in zip(weights, along, strict=True):
            weight.data.add_(direction, alpha=step)
        torch.manual_seed(2)
        found = float(one.backward(model, trie, objective=nll()).loss)
        for weight, direction in zip(weights, along, strict=True):
            weight.data.sub_(direction, alpha=step)
        return found

    quotient = (loss(1e-4) - loss(-1e-4)) / 2e-4
    model.zero_grad()
    loss(0.0)
    gradient = [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in weights]

    assert float(flat(gradient) @ flat(along)) == pytest.approx(quotient, rel=1e-4)
