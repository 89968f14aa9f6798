#!/bin/sh
# Serve a model that needs two nodes with SGLang. Both nodes are placed at once or not at all; the
# process with rank 0 answers requests.
#
#     examples/sglang.sh                              # SGLang must be installed on the nodes
#     MODEL=deepseek-ai/DeepSeek-V3 GPUS=8 examples/sglang.sh
set -eu
model=${MODEL:-deepseek-ai/DeepSeek-V3}
gpus=${GPUS:-8}

muster deploy "$model" --nodes 2 --gpus "$gpus" --startup-timeout 30m --grace 2m -- \
    sh -c "exec python3 -m sglang.launch_server --model-path $model --tp $((2 * gpus)) \
        --nnodes \$WORLD_SIZE --node-rank \$RANK --dist-init-addr \$MASTER_ADDR:\$MASTER_PORT \
        --host {host} --port {port}"
muster models "${model##*/}"
