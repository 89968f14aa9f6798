"""The request to a container engine for one attempt: image, command, limits, devices and mounts.
Pure.

The container runs as the job's Unix user, whatever its image says, on the host's network, so its
ports are the job's. The command replaces the image's entry point, behind init.c. Tests:
tests/unit/test_container_body.py.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from libs.common.model import Gpu, GpuId, JobSpec

INIT: Final = "/.muster-init"
TETHER: Final = "/.muster-tether"
LABEL: Final = "muster.job_dir"
# Of the job's environment.
NVIDIA_NAMES: Final = "CUDA_VISIBLE_DEVICES"
# Where NVIDIA's runtime is the engine's default it gives a container all devices that this names;
# many images say "all".
RUNTIME_NAMES: Final = "NVIDIA_VISIBLE_DEVICES"
NO_DEVICES: Final = "void"
SHARED_MEMORY_BYTES: Final = 8 << 30


class Made(msgspec.Struct, frozen=True):
    """What runner.py needs.

    `body` is the body of the engine's POST /containers/create, without the working directory. That
    is mounted by way of `mount`, and looked for as the user `ids` (`Account.ids`).
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
    """The machine's part: the init program, the device files, CDI's names or NVIDIA's runtime, and
    the bound of processes per job.

    `user` is the agent's own, "UID:GID".
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
    """Return the devices: NVIDIA's by name, because its runtime adds libraries; others by their
    files.

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
