"""How often the tree agrees with labels made by hand: lane and kind of every call, with all evidence and by structure.

    python benchmarks/labels.py tests/captures [--rows]

PATH holds `labels.json` and `HARNESS/NAME.har` as tests/captures does. Prints a confusion table for each mode and the
rows that disagree. A label's `prefix` is compared too, except where only new items went over the wire. By structure
the name of an agent cannot be known: `agent:...` counts as `agent`.
"""

import argparse
import json
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from recorder.importing import read_har
from treebuilder.build import build
from treebuilder.tree import Turn


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


def main() -> None:
    parser = argparse.ArgumentParser(description="compare trees with labels")
    parser.add_argument("path", type=Path)
    parser.add_argument("--rows", action="store_true", help="print every row")
    options = parser.parse_args()
    for structural in (False, True):
        rows = compare(options.path, structural=structural)
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


if __name__ == "__main__":
    main()
