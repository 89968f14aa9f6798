"""The variables that make a job observable: stacks, the flight recorder, and NCCL's RAS port.

A user's own values win, except that the hook's folder goes before the user's PYTHONPATH. Jobs in
containers get none: the paths do not exist there. Tests: tests/unit/test_diagnosis_hook.py.
"""

import os
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final

import libs.job.stacks
from services.node_agent.diagnosis.recorders import DUMP_PREFIX, LOOPBACK, PIPE_PREFIX
from services.node_agent.directories.job_ownership import OWN
from services.node_agent.directories.protocol import CHECKPOINT, CHECKPOINT_VARIABLE

HOOK: Final = str(Path(libs.job.stacks.__file__).parent)
PATH: Final = "PYTHONPATH"
# Collectives that the flight recorder keeps: about 200 bytes each.
RECORDED: Final = 2_000
# Ports for RAS: below those that the kernel gives to clients.
FIRST_PORT: Final = 20_000
PORTS: Final = 10_000
PORT_TRIES: Final = 64


def hooked(
    env: Mapping[str, str], key: str, is_collective: bool, is_free: Callable[[int], bool]
) -> dict[str, str]:
    """Return the environment of an attempt with the hook, and a port for NCCL's RAS.

    `is_collective`: the job has several GPUs, so they may have collectives.
    """
    path = env.get(PATH, "")
    ras = _ras(key, is_free) if is_collective else {}
    return {**ras, **env, PATH: f"{HOOK}:{path}" if path else HOOK}


def with_files(env: Mapping[str, str], job_dir: str, has_user: bool) -> dict[str, str]:
    """Return the environment with the files that the job writes for the agent.

    A job with a user of its own cannot write into the attempt's directory itself.
    """
    folder = f"{job_dir}/{OWN if has_user else '.'}"
    recorder = (
        {
            "TORCH_NCCL_TRACE_BUFFER_SIZE": str(RECORDED),
            "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": f"{folder}/{DUMP_PREFIX}",
            "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{folder}/{PIPE_PREFIX}",
        }
        if "NCCL_RAS_ADDR" in env and env.get(PATH, "").startswith(HOOK)
        else {}
    )
    return {**recorder, **env, CHECKPOINT_VARIABLE: f"{folder}/{CHECKPOINT}"}


def files_of(job_dir: str) -> str:
    """Return the folder where the job writes files for the agent."""
    own = f"{job_dir}/{OWN}"
    return own if os.path.isdir(own) else job_dir


def _ras(key: str, is_free: Callable[[int], bool]) -> dict[str, str]:
    """Return the address of RAS: two jobs of a node must not have the same."""
    first = int.from_bytes(sha256(key.encode()).digest()[:4])
    for number in range(PORT_TRIES):
        port = FIRST_PORT + (first + number) % PORTS
        if is_free(port):
            return {"NCCL_RAS_ADDR": f"{LOOPBACK}:{port}"}
    return {}
