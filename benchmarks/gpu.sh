#!/bin/sh
# The engines on one CUDA GPU, under 8 minutes: agreement first, then step time and memory, then the growing trunk.
set -eu
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-.venv/bin/python}
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"

"$PYTHON" -c 'import sys, torch; sys.exit(0 if torch.cuda.is_available() else "expected a CUDA device; torch sees none")'

"$PYTHON" - <<'PY'
import torch
from benchmarks.engines import Shape, group
from trainer.engines import engine
from trainer.losses import nll
from trainer.trie import TokenTrie

shape = Shape(256, 2, "cuda", "float32")
torch.backends.cuda.matmul.allow_tf32 = False
model = shape.model()
trie = TokenTrie.build(list(group(trunk=300, rollouts=4, turns=2, observed=30)))
seen = {}
for name, options in (("separate", {}), ("packed", {}), ("depth_first", {}), ("depth_first", {"chunk_tokens": 128})):
    model.zero_grad()
    step = engine(name, **options).backward(model, trie, objective=nll())
    seen[f"{name} {options or ''}"] = (float(step.loss), torch.cat([p.grad.flatten() for p in model.parameters()]))
loss, gradient = seen["separate "]
for name, (other, theirs) in seen.items():
    apart = float((theirs - gradient).norm() / gradient.norm())
    print(f"{name:35} loss {other:.6f}  gradient apart {apart:.1e}")
    assert abs(other - loss) < 1e-4 and apart < 1e-3, name
PY

timeout 240 "$PYTHON" benchmarks/engines.py --device cuda --dtype bfloat16 --hidden 2048 --layers 8 --scale 4 --rounds 2
timeout 120 "$PYTHON" benchmarks/engines.py --device cuda --dtype bfloat16 --hidden 1024 --layers 4 --trunk
