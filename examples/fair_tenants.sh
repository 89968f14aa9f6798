#!/bin/sh
# Two teams share a full cluster 3 to 1: their weights decide, not who submits more.
#
#     MUSTER_JOB_USERS='*=self' muster up -d     # agents that are not root must be told to take them
#     examples/fair_tenants.sh                   # needs an administrator's key
set -eu
each=${JOBS:-40}

muster queue set shared --policy fair_share >/dev/null
muster tenant set physics --weight 300 >/dev/null
muster tenant set biology --weight 100 >/dev/null
physics=$(muster key create --user ada --tenant physics)
biology=$(muster key create --user bob --tenant biology)

# Biology comes first and asks for just as much.
MUSTER_API_KEY=$biology muster submit --queue shared --array "1-$each" --workdir / --gpus 1 -- sleep 8
MUSTER_API_KEY=$physics muster submit --queue shared --array "1-$each" --workdir / --gpus 1 -- sleep 8
for _ in 1 2 3 4; do
    sleep 5
    muster tenant list
done
