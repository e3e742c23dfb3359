"""Parts of a dataset, such as train and eval. A family of sessions, those that share a trunk, is in one part whole.

    train=0.9,eval=0.1      a family's hash, 0 to 1, falls into [0, 0.9) or [0.9, 1)

The hash is over the seed and the family's first session, so a family stays in its part whatever else is recorded.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from hashlib import blake2b

from recorder.errors import SplitError

_NAME = re.compile(r"[A-Za-z][\w-]*")


@dataclass(frozen=True, slots=True)
class Split:
    shares: tuple[tuple[str, float], ...]
    """Name of a part and its share of the families; they sum to 1."""
    seed: int = 0

    @classmethod
    def parse(cls, text: str, *, seed: int = 0) -> Split:
        """`NAME=SHARE,...`, shares summing to 1. SplitError where it is not that."""
        shares = []
        for part in text.split(","):
            name, equals, share = part.strip().partition("=")
            try:
                value = float(share) if equals else math.nan
            except ValueError:
                value = math.nan
            if not _NAME.fullmatch(name) or not 0 < value <= 1:
                raise SplitError(f"split: expected NAME=SHARE,... with shares above 0 that sum to 1, got {part!r}")
            shares.append((name, value))
        if len({name for name, _ in shares}) < len(shares):
            raise SplitError(f"split: expected each name once, got {text!r}")
        total = math.fsum(value for _, value in shares)
        if not math.isclose(total, 1, abs_tol=1e-6):
            raise SplitError(f"split: expected shares that sum to 1, got {total:g} of {text!r}")
        return cls(tuple(shares), seed)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.shares)

    def part(self, family: str) -> str:
        """The part of a family, named by its first session."""
        digest = blake2b(f"{self.seed}\0{family}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
        at, behind = int.from_bytes(digest, "big") / 2**64, 0.0
        for name, share in self.shares:
            behind += share
            if at < behind:
                return name
        return self.names[-1]

    def check(self, used: set[str]) -> None:
        """SplitError where a part got nothing."""
        if missing := [name for name in self.names if name not in used]:
            raise SplitError(
                f"split: expected sessions in each part, got none in {', '.join(missing)}; "
                "too few families share no trunk, or another --split-seed may do"
            )
