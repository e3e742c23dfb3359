#!/bin/sh
# The engines on one CUDA GPU, under 8 minutes: agreement first, then step time and memory, then the growing trunk.
#
#   benchmarks/gpu.sh              on a GPU
#   benchmarks/gpu.sh --dry-run    the same steps on CPU with small sizes, FlexAttention's mask included: does it run?
set -eu
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-.venv/bin/python}
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"

case "${1:-}" in
--dry-run)
    device=cpu dtype=float32
    steps="--hidden 128 --layers 1 --rounds 1 --only group"
    trunk="--hidden 128 --layers 1 --longest 8192 --chunk-tokens 2048"
    ;;
"")
    "$PYTHON" -c 'import sys, torch; sys.exit(0 if torch.cuda.is_available() else "expected a CUDA device; torch sees none")'
    device=cuda dtype=bfloat16
    steps="--hidden 2048 --layers 8 --scale 4 --rounds 2"
    trunk="--hidden 1024 --layers 4"
    ;;
*)
    echo "usage: benchmarks/gpu.sh [--dry-run]" >&2
    exit 2
    ;;
esac

stopped() {
    [ "$1" -eq 124 ] || exit "$1"
    echo "out of time: what is above is what there was time for"
}

"$PYTHON" benchmarks/engines.py --table agree --device "$device"
# shellcheck disable=SC2086  # options are words
timeout 260 "$PYTHON" benchmarks/engines.py --table steps --device "$device" --dtype "$dtype" $steps || stopped $?
# shellcheck disable=SC2086
timeout 100 "$PYTHON" benchmarks/engines.py --table trunk --device "$device" --dtype "$dtype" $trunk || stopped $?
