#!/bin/sh
# Serve a model with vLLM: two to four replicas, chosen by the time to the first token.
#
#     examples/vllm.sh                                # vLLM must be installed on the nodes
#     MODEL=Qwen/Qwen2.5-32B-Instruct GPUS=4 examples/vllm.sh
#
# {host}, {port} and {key} are filled in for each replica. Only gateways know the key, so nothing
# else on the network can use the replica. At its end a replica finishes its open answers (--grace).
set -eu
model=${MODEL:-Qwen/Qwen2.5-7B-Instruct}
gpus=${GPUS:-1}

muster deploy "$model" --replicas 2..4 --target-ttft 500ms --gpus "$gpus" --gpu-memory-min 40GiB \
    --interconnect preferred --startup-timeout 20m --grace 2m \
    --env 'VLLM_API_KEY={key}' --env HF_HOME="${HF_HOME:-/models}" --continue-streams -- \
    vllm serve "$model" --host '{host}' --port '{port}' --tensor-parallel-size "$gpus"
muster models "${model##*/}"
