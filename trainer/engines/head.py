"""The output head, at loss positions only and a few rows at a time: most tokens of an agent trace are observations.

A chunk's logits are made, scored, differentiated and dropped before the next, so the vocabulary never meets the whole
sequence. What is left of the head's backward is one gradient per hidden row, handed to the backbone.
"""

# P hidden rows, M targets scored at once, D hidden size, V vocabulary, U targets, K sampled tokens that own those M

from __future__ import annotations

import torch
from torch import Tensor

from trainer.engines.backbone import Backbone
from trainer.engines.step import Step, Targets
from trainer.losses import Objective, Scored, Terms
from trainer.trie import Index

LOGITS_BYTES = 128 << 20  # ours: of one chunk's logits in float32; about three times that is held while differentiating


class Scorer:
    """Collects the logprobs of a trie's targets, in any order, and with an objective the loss and its gradients."""

    def __init__(
        self, backbone: Backbone, targets: Targets, *, objective: Objective | None, keep: bool = False
    ) -> None:
        """`keep`: hold the hidden states that predict the targets, (U, D)."""
        self.kept_UD: Tensor | None = None
        self.keep = keep
        self.backbone = backbone
        self.targets = targets
        dtype = torch.float64 if backbone.dtype == torch.float64 else torch.float32
        device = backbone.device
        self.ids_U = torch.as_tensor(targets.ids_U, dtype=torch.int64, device=device)
        self.logprob_U = torch.full((len(self.ids_U),), torch.nan, dtype=dtype, device=device)
        self.loss = torch.zeros((), dtype=dtype, device=device)
        self.scored = 0
        self.terms: Terms | None = None
        if objective is not None:
            self.terms = objective.bind(targets.trie, trained_N=targets.trained_N, device=device, dtype=dtype)

    def score(self, hidden_PD: Tensor, target_M: Index, row_M: Index) -> None:
        """Score targets, each from the row of `hidden_PD` that predicts it; with an objective, backward to the leaves.

        The gradient of `hidden_PD` is complete after this call: what follows it must not be scored later.
        """
        grad_PD = self.gradient(hidden_PD, target_M, row_M)
        if grad_PD is not None and hidden_PD.requires_grad:
            hidden_PD.backward(grad_PD)  # type: ignore[no-untyped-call]

    def gradient(self, hidden_PD: Tensor, target_M: Index, row_M: Index) -> Tensor | None:
        """As `score`, but hands the loss gradient on `hidden_PD` back instead of going on; None without objective."""
        self.scored += len(target_M)
        if self.keep:
            if self.kept_UD is None:
                self.kept_UD = hidden_PD.new_zeros(len(self.ids_U), hidden_PD.shape[1])
            rows = torch.as_tensor(row_M, device=hidden_PD.device)
            self.kept_UD[torch.as_tensor(target_M, device=hidden_PD.device)] = hidden_PD.detach()[rows]
            return None
        grad_PD = None if self.terms is None else torch.zeros_like(hidden_PD)
        size = max(1, LOGITS_BYTES // (4 * self.backbone.vocabulary))
        for begin in range(0, len(target_M), size):
            target, row = target_M[begin : begin + size], torch.as_tensor(row_M[begin : begin + size])
            row = row.to(hidden_PD.device)
            hidden_MD = hidden_PD.detach()[row]
            if grad_PD is None:
                with torch.no_grad():
                    self._chunk(hidden_MD, target)
                continue
            with torch.enable_grad():
                self._chunk(hidden_MD.requires_grad_(), target).backward()  # type: ignore[no-untyped-call]
            if hidden_MD.grad is not None:
                grad_PD.index_add_(0, row, hidden_MD.grad)
        return grad_PD

    def _chunk(self, hidden_MD: Tensor, target_M: Index) -> Tensor:
        logits_MV = self.backbone.head(hidden_MD).to(self.logprob_U.dtype)
        target = torch.as_tensor(target_M, device=logits_MV.device)
        logprob_M = logits_MV.gather(1, self.ids_U[target][:, None])[:, 0] - logits_MV.logsumexp(-1)
        self.logprob_U[target] = logprob_M.detach()
        if self.terms is None:
            return self.loss
        index, row = (torch.as_tensor(a, device=logits_MV.device) for a in self.targets.sampled(target_M))
        loss = self.terms(Scored(index, logprob_M[row], logits_MV, row))
        self.loss += loss.detach()
        return loss

    def states(self) -> tuple[Tensor, ...]:
        kept_UD = self.kept_UD
        if kept_UD is None:
            kept_UD = torch.zeros(0, 0, dtype=self.logprob_U.dtype, device=self.logprob_U.device)
        return self.targets.per_sample(kept_UD)

    def step(self, engine: str) -> Step:
        assert self.scored == len(self.ids_U), f"{engine} scored {self.scored} of {len(self.ids_U)} targets"
        hidden = self.states() if self.keep else ()
        stats = dict(self.terms.stats()) if self.terms is not None else {}
        return Step(self.loss, self.targets.per_sample(self.logprob_U), stats, engine, hidden)
