#!/bin/sh
# Run a training on 1 to 4 nodes: it starts with the nodes that are free, saves its work when it is
# stopped, and goes on from there with another number of nodes. train.py shows what the program does.
#
#     examples/elastic_gang.sh
set -eu
here=$(cd "$(dirname "$0")" && pwd)
shared=${SHARED:-$(mktemp -d)} # a directory that all nodes reach

job=$(muster submit --nodes 1..4 --gpus 1 --preemptible --checkpoint-signal USR1 --checkpoint-grace 30s \
    -- "${PYTHON:-python3}" "$here/train.py" --checkpoint "$shared/train.json" --steps 60 --save-every 10)
until [ -s "$shared/train.json" ]; do sleep 0.2; done # it has saved once
muster requeue "$job"                                 # as a preemption does
muster wait "$job"
muster log --job "$job" --limit 50 | grep -e JobPlaced -e JobRequeued || true
muster logs "$job"
