#!/bin/sh
# Start a cluster of two nodes with four simulated GPUs each, use it, and stop it.
#
#     examples/basic_cluster_setup.sh [STATE]
#
# With real GPUs: `muster up --local`. More machines: docs/deployment_guide.md.
set -eu
unset MUSTER_URL MUSTER_API_KEY
state=${1:-$(mktemp -d)/muster}
export MUSTER_PROFILE="$state.profile.json" # leaves your own profile as it is

muster up --background --state "$state" --nodes 2 --gpus 4 --port "${PORT:-8090}"
trap 'muster down --state "$state"' EXIT
muster nodes
muster run --gpus 2 -- sh -c 'echo "a job on $MUSTER_NODE_ID with $CUDA_VISIBLE_DEVICES"'
muster run --nodes 2 --gpus 4 -- sh -c 'echo "rank $RANK of $WORLD_SIZE, the first is $MASTER_ADDR"'
job=$(muster submit --gpus 5 -- true) # more than a node has
muster why "$job"
muster cancel "$job"
muster log --limit 5
muster audit verify
