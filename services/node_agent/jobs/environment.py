"""The environment variables of a job, one process per member. Pure.

Later ones win: the machine's (PATH, HOME, LANG), names that other launchers use, the user's own,
then MUSTER_* and the visible devices, which no user can override, then the job's secrets. The
agent's own variables and secrets never appear. Tests: tests/unit/test_environment.py.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from libs.common import arrays, element_runs
from libs.common.devices.visibility import indexes, visibility
from libs.common.messages import StartOrder
from libs.common.messages.secret_messages import REPLICA_KEY
from libs.common.model import WHOLE_GPU, Gpu, GpuId, standby_port
from libs.common.placeholders import KEY
from libs.common.spans.job_spans import run_context
from services.node_agent.core.inherited import INHERITED

OWN_PREFIX: Final = "MUSTER_"
VISIBILITY: Final = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "NVIDIA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "ZE_AFFINITY_MASK",
)
DEFAULT_PORT: Final = 29_500
# The variables that hold the number of an element.
NUMBERED: Final = ("MUSTER_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_ID", "JOB_COMPLETION_INDEX")
NONE: Final[Mapping[GpuId, GpuId]] = {}
NO_SECRETS: Final[Mapping[str, str]] = {}


def passed_on(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the part of the agent's environment that jobs inherit."""
    return {name: environ[name] for name in INHERITED if name in environ}


def environment(
    order: StartOrder,
    node_id: str,
    inventory: Sequence[Gpu],
    base: Mapping[str, str],
    instances: Mapping[GpuId, GpuId] = NONE,
    address: str = "",
    secrets: Mapping[str, str] = NO_SECRETS,
) -> dict[str, str]:
    """Return the member's variables.

    `inventory` is what the driver reports, `base` the result of `passed_on`, `instances` the ids of
    the member's MIG instances by device. `address` is the node's own. `secrets` are values by
    variable; the key of a replica, as REPLICA_KEY, stands for `{key}` in the user's variables.
    """
    key = secrets.get(REPLICA_KEY, "")
    held = [gpu for hold in order.gpus for gpu in inventory if gpu.uuid == hold.uuid]
    users = {
        name: value.replace(KEY, key) if key else value
        for name, value in order.spec.env.items()
        if not reserved(name)
    }
    return {
        **base,
        **_launcher(order),
        **_slurm(order, held),
        **_array(order),
        **_port(order, "PORT"),
        **_trace(order, node_id),
        **users,
        **_own(order, node_id, held),
        **_port(order, "MUSTER_PORT"),
        **_door(order, address, key),
        **visibility(
            [replace(gpu, uuid=instances.get(gpu.uuid, gpu.uuid)) for gpu in held], inventory
        ),
        **{name: secrets[name] for name in secrets if not reserved(name)},
    }


def reserved(name: str) -> bool:
    """Return whether a user's value for this variable is ignored."""
    return name.startswith(OWN_PREFIX) or name in VISIBILITY or name == REPLICA_KEY


def _own(order: StartOrder, node_id: str, held: Sequence[Gpu]) -> dict[str, str]:
    array, number = _element(order)
    return {
        "MUSTER_JOB_ID": order.job_id,
        "MUSTER_ATTEMPT": str(order.attempt),
        "MUSTER_JOB_NAME": order.spec.name,
        "MUSTER_NODE_ID": node_id,
        "MUSTER_RANK": str(order.rank),
        "MUSTER_WORLD_SIZE": str(_world_size(order)),
        "MUSTER_MIN_NODES": str(order.spec.nodes),
        "MUSTER_MAX_NODES": str(order.spec.most_nodes),
        "MUSTER_GPUS": ",".join(gpu.uuid for gpu in held),
        "MUSTER_GPU_SHARE": str(order.gpus[0].share if order.gpus else WHOLE_GPU),
        "MUSTER_TENANT": order.tenant,
        "MUSTER_USER": order.user,
        "MUSTER_PEERS": ",".join(f"{peer.node_id}={peer.address}" for peer in order.peers),
        **(
            {"MUSTER_ARRAY_ID": array, "MUSTER_ARRAY_TASK_ID": str(number)}
            if order.spec.array is not None
            else {}
        ),
    }


def _element(order: StartOrder) -> tuple[str, int]:
    """Return the array and the number of an element, or of the first that a batch runs."""
    if order.spec.array is None or not order.count:
        return arrays.element_of(order.job_id)
    number = arrays.number_at(order.spec.array, order.place + order.done)
    return order.job_id.rpartition("_")[0], number


def elements_of(order: StartOrder) -> dict[str, Any]:
    """Return what the supervisor of a batch must know (`supervisor/order.py`); else nothing."""
    if order.spec.array is None or not order.count:
        return {}
    return {
        "numbers": arrays.numbers_of(order.spec.array, order.place, order.count),
        "first": order.done,
        "names": [name for name in NUMBERED if reserved(name) or name not in order.spec.env],
        "limit_s": element_runs.element_limit_s(
            order.spec.time_limit_s, order.count, order.spec.grace_s
        ),
        "grace_s": order.spec.grace_s,
    }


def _trace(order: StartOrder, node_id: str) -> dict[str, str]:
    """Return the variable below whose span OpenTelemetry's libraries put the job's own spans."""
    context = run_context(order, node_id) if order.trace else None
    return {} if context is None else {"TRACEPARENT": context.text}


def _launcher(order: StartOrder) -> dict[str, str]:
    """Return torch.distributed's names: one process per node, and the node of rank 0 is
    the master.
    """
    return {
        "RANK": str(order.rank),
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(_world_size(order)),
        "LOCAL_WORLD_SIZE": "1",
        "NODE_RANK": str(order.rank),
        "GROUP_RANK": str(order.rank),
        "MASTER_ADDR": order.peers[0].address if order.peers else "127.0.0.1",
        "MASTER_PORT": str(_master_port(order) or DEFAULT_PORT),
        # So that `logs -f` shows what a Python program prints when it prints it.
        "PYTHONUNBUFFERED": "1",
    }


def _master_port(order: StartOrder) -> int:
    """Return the port on which the processes of all nodes meet.

    Rank 0 of a replica answers requests on `port`, so its nodes meet on its second one.
    """
    is_gang_of_model = order.spec.serve is not None and order.spec.nodes > 1
    return standby_port(order.port) if is_gang_of_model else order.port


def _port(order: StartOrder, name: str) -> dict[str, str]:
    """Return the port of a replica."""
    return {name: str(order.port)} if order.spec.serve is not None else {}


def _door(order: StartOrder, address: str, key: str) -> dict[str, str]:
    """Return the address where a replica is reached, and the key that gateways send."""
    if order.spec.serve is None:
        return {}
    return {"MUSTER_HOST": address, **({"MUSTER_REPLICA_KEY": key} if key else {})}


def _slurm(order: StartOrder, held: Sequence[Gpu]) -> dict[str, str]:
    """Return Slurm's names, which many launchers look for."""
    nodes = ",".join(peer.node_id for peer in order.peers)
    return {
        "SLURM_JOB_ID": order.job_id,
        "SLURM_JOBID": order.job_id,
        "SLURM_JOB_NAME": order.spec.name,
        "SLURM_JOB_NODELIST": nodes,
        "SLURM_NODELIST": nodes,
        "SLURM_JOB_NUM_NODES": str(_world_size(order)),
        "SLURM_NNODES": str(_world_size(order)),
        "SLURM_NODEID": str(order.rank),
        "SLURM_PROCID": str(order.rank),
        "SLURM_LOCALID": "0",
        "SLURM_NTASKS": str(_world_size(order)),
        "SLURM_NTASKS_PER_NODE": "1",
        "SLURM_GPUS_ON_NODE": str(len(held)),
        "SLURM_JOB_GPUS": indexes(held),
        "SLURM_RESTART_COUNT": str(order.attempt - 1),
        "SLURM_SUBMIT_DIR": order.spec.workdir,
        "SLURM_JOB_ACCOUNT": order.tenant,
        "SLURM_JOB_USER": order.user,
    }


def _array(order: StartOrder) -> dict[str, str]:
    """Return the number of an array element under the names that scripts use; MUSTER_'s are in
    `_own`.
    """
    array, number = _element(order)
    if order.spec.array is None or not array:
        return {}
    count = arrays.count(order.spec.array)
    lowest, highest = (arrays.number_at(order.spec.array, place) for place in (0, count - 1))
    numbers = {"TASK_ID": number, "TASK_COUNT": count, "TASK_MIN": lowest, "TASK_MAX": highest}
    return {
        "SLURM_ARRAY_JOB_ID": array,
        **{f"SLURM_ARRAY_{name}": str(value) for name, value in numbers.items()},
        "JOB_COMPLETION_INDEX": str(number),
    }


def _world_size(order: StartOrder) -> int:
    return max(1, len(order.peers))
