"""Builds the request that creates an attempt's container: image, command, limits, devices, mounts.

Pure. The container runs as the job's Unix user, whatever its image says, and on the host's network,
so its ports are the job's. init.c is its entry point and runs the job's command. Tests:
tests/unit/test_container_body.py.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from libs.common.model import Gpu, GpuId, JobSpec

INIT: Final = "/.muster-init"
TETHER: Final = "/.muster-tether"
LABEL: Final = "muster.job_dir"
# The variable of the job's environment that names its NVIDIA devices.
NVIDIA_NAMES: Final = "CUDA_VISIBLE_DEVICES"
# Where NVIDIA's runtime is the engine's default, a container gets all devices that this variable
# names. Many images set it to "all".
RUNTIME_NAMES: Final = "NVIDIA_VISIBLE_DEVICES"
NO_DEVICES: Final = "void"
SHARED_MEMORY_BYTES: Final = 8 << 30


class Made(msgspec.Struct, frozen=True):
    """The input of runner.py.

    `body` is the body of the engine's POST /containers/create, without the working directory.
    runner.py opens that as the user `ids` (`Account.ids`) and mounts it at `mount` for the engine.
    """

    engine: str
    name: str
    tether: str
    mount: str
    workdir: str
    ids: list[int]
    stdin: bool
    body: dict[str, Any]


class Host(msgspec.Struct, frozen=True):
    """The machine's part of the request.

    `init` is the path of the init program, `files` the device files of each device. `cdi`: the
    engine names NVIDIA devices by CDI; otherwise NVIDIA's runtime is used. `processes_max` bounds
    the processes of a job. `user` is the agent's own, "UID:GID".
    """

    init: str
    files: Mapping[GpuId, Sequence[str]]
    cdi: bool
    processes_max: int
    user: str


def body_of(
    spec: JobSpec,
    argv: Sequence[str],
    env: Mapping[str, str],
    ids: Sequence[int],
    held: Sequence[Gpu],
    limits: Mapping[str, Any],
    host: Host,
) -> dict[str, Any]:
    """Return the request, without mounts."""
    memory, devices = spec.memory_bytes, _devices(held, host, env.get(NVIDIA_NAMES, ""))
    seen = {
        **env,
        RUNTIME_NAMES: NO_DEVICES
        if host.cdi or not _is_nvidia(held)
        else env.get(NVIDIA_NAMES, "") or NO_DEVICES,
    }
    return {
        "Image": spec.image,
        "Entrypoint": [INIT, TETHER, *argv],
        "Cmd": [],
        "Env": [f"{name}={value}" for name, value in seen.items()],
        "User": f"{ids[0]}:{ids[1]}" if ids else host.user,
        "OpenStdin": spec.stdin,
        "StdinOnce": True,
        "AttachStdin": spec.stdin,
        "Tty": False,
        "HostConfig": {
            "NetworkMode": "host",
            "GroupAdd": [str(group) for group in ids[2:]],
            "SecurityOpt": ["no-new-privileges"],
            "Memory": memory,
            "MemorySwap": memory,
            "NanoCpus": spec.cpus_milli * 1_000_000,
            "CpusetCpus": limits.get("cpus", ""),
            "CpusetMems": limits.get("memory_nodes", ""),
            "PidsLimit": host.processes_max,
            "ShmSize": memory // 2 or SHARED_MEMORY_BYTES,
            "LogConfig": {"Type": "none"},
            "Mounts": [],
            **devices,
        },
    }


def mounted(source: str, target: str, read_only: bool = False) -> dict[str, Any]:
    return {"Type": "bind", "Source": source, "Target": target, "ReadOnly": read_only}


def _is_nvidia(held: Sequence[Gpu]) -> bool:
    return any(gpu.vendor == "nvidia" for gpu in held)


def _devices(held: Sequence[Gpu], host: Host, visible: str) -> dict[str, Any]:
    """Return the part of the request that names the devices.

    NVIDIA's devices go by name, because its runtime adds libraries. Others go by their files.
    Simulated devices have none.
    """
    named = visible.split(",") if _is_nvidia(held) else []
    files = [
        path
        for gpu in held
        if gpu.vendor in ("amd", "intel")
        for path in host.files.get(gpu.uuid, ())
    ]
    if any(gpu.vendor == "amd" for gpu in held):
        files.insert(0, "/dev/kfd")
    found: dict[str, Any] = {}
    if named:
        by_cdi = {"Driver": "cdi", "DeviceIDs": [f"nvidia.com/gpu={uuid}" for uuid in named]}
        found["DeviceRequests"] = [
            by_cdi
            if host.cdi
            else {"Driver": "nvidia", "DeviceIDs": named, "Capabilities": [["gpu"]]}
        ]
    if files:
        found["Devices"] = [
            {"PathOnHost": path, "PathInContainer": path, "CgroupPermissions": "rwm"}
            for path in dict.fromkeys(files)
        ]
    return found
