#!/bin/sh
# Run a thousand tasks of a few milliseconds each, two at a time, and count how they ended.
#
#     examples/short_array.sh
set -eu

job=$(muster submit --array 0-999%2 --short --gpus 0 --cpus 0.5 -- sh -c 'test $MUSTER_ARRAY_TASK_ID != 500')
muster wait "$job" || true
muster describe "$job" | grep Array
muster ps --elements "$job" -s failed
