"""Visit the trie depth first: forward on the way down, backward on the way up, one path's keys and values held for all.

    forward  trunk ──> leg ──> (backward leg) ──> spine ──> ... ──> (backward spine) ──> (backward trunk)

A unit's keys and values lie in the path's buffer at its depth. Its own backward runs when everything below has added to
the gradient of that stretch. With recomputation the way down is made without gradient and each unit is forwarded again
on the way up, so that the activations of one unit are all that is held: context length stops being the limit.
"""

# L tokens of a unit, J = seen + L, H heads, D head size

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trainer.engines.attention import Path, using
from trainer.engines.backbone import Backbone
from trainer.engines.cache import PathCache
from trainer.engines.head import Scorer
from trainer.engines.probe import obstacle, takes_kernels
from trainer.engines.separate import instead_of
from trainer.engines.step import Step, Targets
from trainer.engines.units import Plan, Unit, plan, runs, seen_mask
from trainer.losses import Objective
from trainer.trie import Index, TokenTrie


@dataclass(frozen=True, slots=True)
class DepthFirst:
    chunk_tokens: int | None = None
    """Most tokens of one call of the model; None = a node at a time."""
    recompute: bool | None = None
    """Forward again on the way up instead of holding activations; None = if chunk_tokens is given."""
    bush_tokens: int = 768
    """What is smaller is computed together up to this size; 0 = a node at a time. Ours: benchmarks/engines.md."""
    kernels: bool = True
    """Attend without masks where trainer/engines/attention.py can; False = caches and masks everywhere."""

    def backward(self, model: nn.Module, trie: TokenTrie, *, objective: Objective) -> Step:
        return self._run(model, trie, objective, recompute=self.recomputes)

    @property
    def recomputes(self) -> bool:
        return self.chunk_tokens is not None if self.recompute is None else self.recompute

    def plan(self, trie: TokenTrie, before_U: Index, *, kernels: bool) -> Plan:
        """The calls it will make."""
        return plan(trie, before_U, chunk_tokens=self.chunk_tokens, bush_tokens=self.bush_tokens, spines=kernels)

    def logprobs(self, model: nn.Module, trie: TokenTrie) -> tuple[Tensor, ...]:
        with torch.no_grad():
            return self._run(model, trie, None, recompute=False).logprobs

    def states(self, model: nn.Module, trie: TokenTrie) -> tuple[Tensor, ...]:
        with torch.no_grad():
            return self._run(model, trie, None, recompute=False, keep=True).states

    def _run(
        self, model: nn.Module, trie: TokenTrie, objective: Objective | None, *, recompute: bool, keep: bool = False
    ) -> Step:
        backbone, targets = Backbone(model), Targets.of(trie)
        if why := obstacle(backbone, trie.longest):
            return instead_of("depth_first", model, trie, objective, keep=keep, why=why)
        scorer = Scorer(backbone, targets, objective=objective, keep=keep)
        with backbone.sharing():
            fast = self.kernels and takes_kernels(backbone)
            cut = self.plan(trie, targets.before_U, kernels=fast)
            _Visit(backbone, scorer, trie, cut, fast=fast, recompute=recompute, train=objective is not None).all()
        return scorer.step("depth_first")


class _Visit:
    def __init__(
        self,
        backbone: Backbone,
        scorer: Scorer,
        trie: TokenTrie,
        cut: Plan,
        *,
        fast: bool,
        recompute: bool,
        train: bool,
    ) -> None:
        self.backbone = backbone
        self.scorer = scorer
        self.trie = trie
        self.cut = cut
        self.recompute = recompute
        self.train = train
        self.path = Path(cut.longest_path, gradient=train) if fast else None
        self.cache = None if fast else PathCache(cut.longest_path, gradient=train)
        self.inner = {unit.parent for unit in cut.units}
        self.random: dict[int, tuple[Tensor, ...]] = {}

    def all(self) -> None:
        waiting: list[tuple[int, Tensor | None]] = []
        for number, unit in enumerate(self.cut.units):
            while waiting and waiting[-1][0] != unit.parent:
                self._up(*waiting.pop())
            waiting.append((number, self._down(number, unit)))
        while waiting:
            self._up(*waiting.pop())

    def _down(self, number: int, unit: Unit) -> Tensor | None:
        """The unit's hidden states, or None where nothing is held until the way up."""
        if not self.train:
            hidden_LD = self._forward(unit)
            self.scorer.score(hidden_LD, *self.scorer.targets.predicted_by(unit.token_L))
            return None
        if not self.recompute:
            return self._forward(unit)
        if number in self.inner:
            self.random[number] = _random(self.backbone.device)
            with torch.no_grad():
                self._forward(unit.trunk)
        return None

    def _up(self, number: int, hidden_LD: Tensor | None) -> None:
        if self.train:
            unit = self.cut.units[number]
            hidden_LD = self._again(number, unit) if hidden_LD is None else hidden_LD
            self.scorer.score(hidden_LD, *self.scorer.targets.predicted_by(unit.token_L))

    def _again(self, number: int, unit: Unit) -> Tensor:
        """Dropout falls as it fell on the way down: what is below has seen those keys and values."""
        if number not in self.random:
            return self._forward(unit)
        device = self.backbone.device
        with torch.random.fork_rng([device] if device.type == "cuda" else [], enabled=True):
            host, *others = self.random.pop(number)
            torch.set_rng_state(host)
            for state in others:
                torch.cuda.set_rng_state(state, device)
            return self._forward(unit)

    def _forward(self, unit: Unit) -> Tensor:
        device = self.backbone.device
        ids_L = torch.as_tensor(self.trie.ids_T[unit.token_L], dtype=torch.int64, device=device)
        positions_L = torch.as_tensor(self.trie.depth_T[unit.token_L], device=device)
        if self.path is not None:
            self.path.begin(unit.seen, runs(unit, self.cut, dtype=self.backbone.dtype))
            with using(self.backbone, self.path):
                return self.backbone.hidden(ids_L, positions_L=positions_L)
        assert self.cache is not None
        self.cache.begin(unit.seen)
        seen_LJ = seen_mask(unit, self.cut, device=device)
        return self.backbone.hidden(ids_L, positions_L=positions_L, seen_LJ=seen_LJ, cache=self.cache)


def _random(device: torch.device) -> tuple[Tensor, ...]:
    """The state of the generators that dropout on this device draws from."""
    host = torch.get_rng_state()
    return (host, torch.cuda.get_rng_state(device)) if device.type == "cuda" else (host,)
