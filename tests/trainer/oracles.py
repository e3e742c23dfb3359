"""Small models and by-hand computations that engines are held against."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from trainer.trie import Sample

VOCABULARY = 101


class Float64Rotary(nn.Module):
    """Llama's rotary embedding without its detour through float32."""

    def __init__(self, head_size: int, *, base: float = 10_000.0) -> None:
        super().__init__()
        self.attention_scaling = 1.0
        self.inv_freq = nn.Buffer(base ** -(torch.arange(0, head_size, 2, dtype=torch.float64) / head_size))

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        angle = position_ids[..., None].to(torch.float64) * self.inv_freq
        angle = torch.cat((angle, angle), dim=-1)
        return angle.cos().to(x.dtype), angle.sin().to(x.dtype)


@cache
def float64_model(*, layers: int = 2, seed: int = 0) -> nn.Module:
    """A Llama whose norms and rotary angles are float64 like all the rest: rounding is the only difference left."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.3,
        pad_token_id=None,
    )
    model = LlamaForCausalLM(config)
    for name, module in list(model.named_modules()):
        if type(module).__name__ == "LlamaRMSNorm":
            model.set_submodule(name, nn.RMSNorm(32, eps=1e-6))
    model.model.rotary_emb = Float64Rotary(8)
    torch.manual_seed(seed + 1)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    whole: nn.Module = model.double()
    return whole


@cache
def real_model(kind: str, *, seed: int = 0) -> nn.Module:
    """transformers' own Llama, Qwen3 or GPT-NeoX, two random layers, float64 but for what they compute in float32."""
    torch.manual_seed(seed)
    shared = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "initializer_range": 0.3,
    }
    if kind == "llama":
        model = LlamaForCausalLM(LlamaConfig(**shared, num_attention_heads=4, num_key_value_heads=2))
    elif kind == "qwen3":
        model = Qwen3ForCausalLM(Qwen3Config(**shared, num_attention_heads=4, num_key_value_heads=2, head_dim=8))
    else:
        model = GPTNeoXForCausalLM(GPTNeoXConfig(**shared, num_attention_heads=4))
    whole: nn.Module = model.double().eval()
    return whole


def by_hand(model: nn.Module, samples: Sequence[Sample]) -> tuple[Tensor, list[Tensor]]:
    """Every call alone, whole logits, plain autograd: loss = mean nll of the sampled tokens, gradients in .grad."""
    logprobs = []
    for sample in samples:
        if not len(sample):
            logprobs.append(torch.zeros(0, dtype=torch.float64))
            continue
        ids = torch.as_tensor(sample.ids(), dtype=torch.int64)
        logits = model(input_ids=ids[None]).logits[0, :-1]
        first = max(len(sample.prompt_ids), 1)
        logprobs.append(logits.log_softmax(-1).gather(1, ids[1:, None])[first - 1 :, 0])
    total = torch.cat(logprobs) if logprobs else torch.zeros(0)
    loss = -total.sum() / max(len(total), 1)
    if loss.requires_grad:
        torch.autograd.backward(loss)
    return loss.detach(), [logprob.detach() for logprob in logprobs]


def gradients(model: nn.Module) -> list[Tensor]:
    """Take the gradients out of the model."""
    taken = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]
    model.zero_grad(set_to_none=True)
    return taken


def worst(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> float:
    """The largest difference of any parameter's gradient, as a share of its largest entry.

    A gradient that is zero but for rounding (a query with one key) is held against a thousandth of the model's.
    """
    floor = 1e-3 * max((float(b.abs().max()) for b in theirs), default=0.0) + 1e-30
    return max(float((a - b).abs().max()) / max(float(b.abs().max()), floor) for a, b in zip(ours, theirs, strict=True))


def keeping_decoder(
    model: nn.Module, views: Sequence[Sequence[int]], ids: Sequence[int], *, renumber: bool = True
) -> Tensor:
    """A decoder that keeps keys and values across evictions, token by token, without masks: (H, V) log-probabilities.

    `views`: for each call, which tokens of the stream the model saw, in order; what no earlier view had is computed
    now, each seeing what stands before it. Keys are held unrotated and rotated to their place in the view at each step.
    `renumber` False leaves every key at the position where it was computed.
    """
    body: Any = model.model
    head: Any = model.lm_head
    heads, groups, size = 4, 2, 8
    keys: list[dict[int, Tensor]] = [{} for _ in body.layers]
    values: list[dict[int, Tensor]] = [{} for _ in body.layers]
    born: dict[int, int] = {}
    out: dict[int, Tensor] = {}

    def turn(x: Tensor, position: int) -> Tensor:
        cos, sin = body.rotary_emb(x, torch.tensor([[position]]))
        half = torch.cat([-x[..., size // 2 :], x[..., : size // 2]], dim=-1)
        turned: Tensor = x * cos[0, 0] + half * sin[0, 0]
        return turned

    for view in views:
        for rank, token in enumerate(view):
            if token in out:
                continue
            born[token] = rank
            x = body.embed_tokens.weight[ids[token]]
            for layer, (ks, vs) in zip(body.layers, zip(keys, values, strict=True), strict=True):
                attention, normed = layer.self_attn, layer.input_layernorm(x)
                ks[token] = attention.k_proj(normed).view(groups, size)
                vs[token] = attention.v_proj(normed).view(groups, size)
                query = turn(attention.q_proj(normed).view(heads, size), rank)
                seen = view[: rank + 1]
                place = {other: at if renumber else born[other] for at, other in enumerate(seen)}
                key = torch.stack([turn(ks[other], place[other]) for other in seen]).repeat_interleave(2, dim=1)
                value = torch.stack([vs[other] for other in seen]).repeat_interleave(2, dim=1)
                score = torch.einsum("hd,jhd->hj", query, key) / size**0.5
                x = x + attention.o_proj(torch.einsum("hj,jhd->hd", score.softmax(-1), value).reshape(-1))
                x = x + layer.mlp(layer.post_attention_layernorm(x))
            out[token] = head(body.norm(x)).log_softmax(-1)
    return torch.stack([out[token] for token in range(len(ids))])
