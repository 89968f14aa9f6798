#!/bin/sh
# One team serves a model, another one may use it within limits, and both see who used what.
#
#     MUSTER_JOB_USERS='*=self' muster up -d     # agents that are not root must be told to take them
#     examples/multi_tenant_deployment.sh        # needs an administrator's key
set -eu
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}

key_of() { # USER TENANT: create a key and print it
    muster key create --user "$1" --tenant "$2" --expires 30d
}
muster tenant set vision --gpus 8 --gpu-hours 500 --gpu-hours-per month
muster tenant set product --gpus 2 --tokens-per-minute 200000
vision=$(key_of ada vision) product=$(key_of bob product)

# Vision deploys, and lets product use the model: 60 requests a minute, 20,000 tokens a minute.
MUSTER_API_KEY=$vision muster deploy assistant --replicas 2 --gpus 1 --upload "$here" --wait -- \
    "$python" model_server.py --port '{port}'
MUSTER_API_KEY=$vision muster model share assistant --with product \
    --requests-per-minute 60 --tokens-per-minute 20000

# Product sends a request; it sees the model, but neither its replicas nor its command.
MUSTER_API_KEY=$product "$python" "$here/ask.py" assistant "Is it warm enough to swim?"
MUSTER_API_KEY=$product muster models

MUSTER_API_KEY=$vision muster undeploy assistant
sleep "${ARCHIVED_S:-5}" # the use of a replica is recorded at its end
muster usage --since 1h --by tenant,user,model
