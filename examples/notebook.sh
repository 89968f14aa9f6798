#!/bin/sh
# Hold a GPU for four hours and open a notebook on it. Ctrl-C ends both.
#
#     examples/notebook.sh            # then open http://127.0.0.1:8888 here
#
# Jupyter must be installed on the nodes (pip install jupyterlab). NOTEBOOK names another command.
set -eu
port=${PORT:-8888}
inside=${INSIDE:-18888} # the port on the node, which may be this machine
notebook=${NOTEBOOK:-jupyter lab --no-browser --ip 127.0.0.1 --port $inside}

job=$(muster alloc --gpus 1 --expires 4h --output json | "${PYTHON:-python3}" -c \
    'import json, sys; print(json.load(sys.stdin)["id"])')
trap 'muster release "$job"' EXIT
trap 'exit 130' INT TERM

# shellcheck disable=SC2086  the command is several words
muster exec "$job" -- $notebook &
muster port-forward "$job" "$inside:$port"
