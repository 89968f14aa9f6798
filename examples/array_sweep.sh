#!/bin/sh
# Try ten learning rates as one array, four at a time, and print the best one.
#
#     examples/array_sweep.sh
set -eu
here=$(cd "$(dirname "$0")" && pwd)

job=$(muster submit --array 0-9%4 --gpus 1 --time 10m --upload "$here" -- "${PYTHON:-python3}" sweep.py)
muster wait "$job"
for element in 0 1 2 3 4 5 6 7 8 9; do
    muster logs "${job}_$element"
done | sort -g -k 4 | head -n 1
