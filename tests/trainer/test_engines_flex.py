"""FlexAttention's block mask is the drawn mask: on CPU without torch.compile; benchmarks/gpu.sh compares it on a GPU.

Seen red: the comparison with the subtree's end dropped from `flex_hidden`; positions left out of its call.
"""

from __future__ import annotations

from typing import Any

import pytest
from oracles import by_hand, gradients, real_model, worst
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

from trainer.engines import packed
from trainer.engines.backbone import Backbone
from trainer.engines.packed import Packed
from trainer.losses import nll
from trainer.trie import Sample, TokenTrie

GROUP = [Sample([*range(40)], [50, 51 + leg // 2, 60 + leg, 7], rollout=leg) for leg in range(6)]


def eager(query: Any, key: Any, value: Any, training: bool = False, **kwargs: Any) -> Any:
    return flex_attention(query, key, value, **kwargs)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_packed_under_a_block_mask_is_separate(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.integrations.flex_attention.compile_friendly_flex_attention", eager)
    monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *tensors: None)
    monkeypatch.setattr(packed, "takes_kernels", lambda backbone: False)
    monkeypatch.setattr(packed, "flexes", lambda backbone: True)
    calls: list[int] = []
    plain = Backbone.flex_hidden

    def counted(self: Backbone, ids_T: Tensor, positions_T: Tensor, end_T: Tensor) -> Tensor:
        calls.append(len(ids_T))
        return plain(self, ids_T, positions_T, end_T)

    monkeypatch.setattr(Backbone, "flex_hidden", counted)
    model = real_model(kind)
    loss, _ = by_hand(model, GROUP)
    expected = gradients(model)
    step = Packed().backward(model, TokenTrie.build(GROUP), objective=nll())

    assert calls == [41 + 3 + 6]  # the trunk, three forks, six ends of which the last token predicts nothing
    assert abs(float(step.loss - loss)) < 1e-6
    assert worst(gradients(model), expected) < 1e-6
    assert model.config._attn_implementation == "sdpa"  # type: ignore[union-attr]
