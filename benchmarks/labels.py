"""How often the tree agrees with labels made by hand: lane and kind of every call, with all evidence and by structure.

    python benchmarks/labels.py tests/captures tests/driven [--rows] [--perturbed [--seeds 3]]

Each PATH holds `labels.json` and `HARNESS/NAME.har`. Prints a confusion table for each mode and the
rows that disagree. A label's `prefix` is compared too, except where only new items went over the wire. By structure
the name of an agent cannot be known: `agent:...` counts as `agent`. `--perturbed` measures the same on recordings
changed by `benchmarks/perturbations.py`, whose labels stay true.
"""

import argparse
import json
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from recorder.importing import read_har
from recorder.message import Exchange
from recorder.wire import read
from treebuilder.arrival import prepare
from treebuilder.build import Builder, build
from treebuilder.tree import Turn

sys.path.insert(0, str(Path(__file__).parent))
from perturbations import ALONE, Item, interleaved, pairs, share


@dataclass(frozen=True, slots=True)
class Label:
    entry: str
    lane: str
    kind: str
    prefix: int | None


@dataclass(frozen=True, slots=True)
class Row:
    scenario: str
    label: Label
    turn: Turn | None
    structural: bool

    @property
    def kind(self) -> str:
        return self.turn.kind if self.turn else "missing"

    @property
    def lane(self) -> str:
        lane = self.turn.lane if self.turn else "missing"
        return lane.partition(":")[0] if self.structural else lane

    @property
    def right(self) -> bool:
        wanted = self.label.lane.partition(":")[0] if self.structural else self.label.lane
        return self.kind == self.label.kind and self.lane == wanted

    @property
    def prefix_differs(self) -> bool:
        delta = ".ws" in self.label.entry
        return self.turn is not None and self.label.prefix not in (None, self.turn.prefix) and not delta


def compare(root: Path, *, structural: bool) -> list[Row]:
    """One row per label whose capture is there."""
    labels: dict[str, list[dict[str, object]]] = json.loads((root / "labels.json").read_text())
    rows: list[Row] = []
    for scenario, wanted in sorted(labels.items()):
        path = root / f"{scenario}.har"
        if not path.exists():
            continue
        turns = {t.call.source.partition("#")[2]: t for t in build(read_har(path), structural=structural)}
        for raw in wanted:
            prefix = raw.get("prefix")
            label = Label(
                str(raw["entry"]), str(raw["lane"]), str(raw["kind"]), prefix if isinstance(prefix, int) else None
            )
            rows.append(Row(scenario, label, turns.pop(label.entry, None), structural))
        for source in turns:
            print(f"  {scenario}#{source}: a call without a label", file=sys.stderr)
    return rows


def confusion(rows: list[Row]) -> str:
    """Labels down, what the tree says across."""
    counts = Counter((row.label.kind, row.kind) for row in rows)
    across = sorted({k for _, k in counts})
    lines = [f"{'label':>16} | " + " ".join(f"{k[:9]:>9}" for k in across)]
    for kind in sorted({k for k, _ in counts}):
        cells = (str(counts[kind, k]) if counts[kind, k] else "." for k in across)
        lines.append(f"{kind:>16} | " + " ".join(f"{c:>9}" for c in cells))
    return "\n".join(lines)


def recordings(root: Path) -> Iterator[tuple[str, list[Item]]]:
    """Each capture's calls with their meaning and label; each is its own run."""
    labels: dict[str, list[dict[str, str]]] = json.loads((root / "labels.json").read_text())
    for scenario, wanted in sorted(labels.items()):
        path = root / f"{scenario}.har"
        if not path.exists():
            continue
        by_entry = {row["entry"]: row for row in wanted}
        items = []
        for call in read_har(path):
            row, meaning = by_entry.get(call.source.partition("#")[2]), read(call)
            if row is not None and isinstance(meaning, Exchange):
                thread = f"{scenario} {row['session']}|{row['lane']}"
                items.append(Item(replace(call, run=scenario), meaning, row["lane"], row["kind"], thread))
        yield scenario, items


def judged(items: Sequence[Item], *, structural: bool) -> list[tuple[Item, Turn, bool]]:
    """Whether lane (agents' names aside) and kind are right, for all that counts."""
    builder = Builder(structural=structural)
    for item in items:
        builder.place(prepare(item.call, item.exchange))
    found = []
    for item, turn in zip(items, builder.trajectory(), strict=True):
        same = turn.kind == item.kind and turn.lane.partition(":")[0] == item.lane.partition(":")[0]
        if item.counted:
            found.append((item, turn, same))
    return found


def perturbed(roots: Sequence[Path], *, seeds: int, show: bool) -> None:
    """One line a perturbation: right with all evidence, right by structure, over all captures and seeds."""
    every = [items for root in roots for _, items in recordings(root)]
    print(f"\n| {'perturbation':<36} | {'all evidence':>24} | {'structure only':>24} |")
    print(f"|{'-' * 38}|{'-' * 25}:|{'-' * 25}:|")
    for name in [*ALONE, "two recordings interleaved"]:
        cells = []
        for structural in (False, True):
            rows: list[bool] = []
            wrong: dict[str, int] = defaultdict(int)
            for seed in range(1 if name == "as recorded" else seeds):
                rng = random.Random(f"{name} {seed}")
                if name in ALONE:
                    made = [ALONE[name](items, rng) for items in every]
                else:
                    made = [
                        [replace(i, call=replace(i.call, run="both")) for i in interleaved([every[a], every[b]], rng)]
                        for a, b in pairs(len(every), rng)
                    ]
                for items in made:
                    for item, turn, right in judged(items, structural=structural):
                        rows.append(right)
                        if not right:
                            wrong[
                                f"{item.call.source}: {item.lane} {item.kind} <> {turn.lane} {turn.kind} "
                                f"[{'; '.join(turn.evidence)[-110:]}]"
                            ] += 1
            cells.append(share(rows))
            if show:
                for what, times in sorted(wrong.items()):
                    print(f"! {name}, {'structure' if structural else 'evidence'}, x{times}: {what}", file=sys.stderr)
        print(f"| {name:<36} | {cells[0]:>24} | {cells[1]:>24} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="compare trees with labels")
    parser.add_argument("paths", type=Path, nargs="+", metavar="PATH")
    parser.add_argument("--rows", action="store_true", help="print every row")
    parser.add_argument("--perturbed", action="store_true", help="measure on changed recordings too")
    parser.add_argument("--seeds", type=int, default=3, help="changed recordings per capture and change")
    options = parser.parse_args()
    for structural in (False, True):
        rows = [row for path in options.paths for row in compare(path, structural=structural)]
        right = sum(row.right for row in rows)
        print(
            f"\n{'structure only' if structural else 'all evidence'}: {right} of {len(rows)} rows right, "
            f"{right / max(1, len(rows)):.1%}\n"
        )
        print(confusion(rows))
        for row in rows:
            if not row.right or row.prefix_differs or options.rows:
                said = f"{row.lane} {row.kind} {row.turn.prefix if row.turn else '-'}"
                why = "; ".join(row.turn.evidence)[:150] if row.turn else ""
                mark = "  " if row.right and not row.prefix_differs else "! " if not row.right else "p "
                print(
                    f"{mark}{row.scenario}#{row.label.entry}: {row.label.lane} {row.label.kind} "
                    f"{row.label.prefix} <> {said}   [{why}]"
                )
    if options.perturbed:
        perturbed(options.paths, seeds=options.seeds, show=options.rows)


if __name__ == "__main__":
    main()
