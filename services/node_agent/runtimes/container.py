"""Builds the request that creates an attempt's container: image, command, limits, devices, mounts.

Pure. The container runs on the host's network, so its ports are the job's, and as the job's Unix
user unless the node allows another one (`allowed.py`). init.c is its entry point and runs the
image's entry point with the job's command. Tests: tests/unit/test_container_body.py.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from libs.common.container_spec import Scratch
from libs.common.model import Gpu, GpuId, JobSpec
from services.node_agent.runtimes import allowed as a
from services.node_agent.runtimes.faults import NoContainer

INIT: Final = "/.muster-init"
TETHER: Final = "/.muster-tether"
# The socket at which the first process asks for commands beside the job (init.c).
DOOR: Final = "/.muster-door"
LABEL: Final = "muster.job_dir"
# The image's name, for people: the container names the image by its id.
IMAGE_LABEL: Final = "muster.image"
CACHES_LABEL: Final = "muster.caches"
ROOT: Final = "0:0"
# The variable of the job's environment that names its NVIDIA devices.
NVIDIA_NAMES: Final = "CUDA_VISIBLE_DEVICES"
# Where NVIDIA's runtime is the engine's default, a container gets all devices that this variable
# names. Many images set it to "all".
RUNTIME_NAMES: Final = "NVIDIA_VISIBLE_DEVICES"
NO_DEVICES: Final = "void"
SHARED_MEMORY_BYTES: Final = 8 << 30


class Made(msgspec.Struct, frozen=True):
    """The input of runner.py.

    `body` is the body of the engine's POST /containers/create, without the job's own `mounts`, the
    working directory among them (`allowed.py`). runner.py opens these as the user `ids`
    (`Account.ids`), and mounts them for the engine beside `mount`.
    """

    engine: str
    name: str
    tether: str
    mount: str
    ids: list[int]
    stdin: bool
    body: dict[str, Any]
    mounts: list[dict[str, Any]] = []


class Image(msgspec.Struct, frozen=True):
    """An image of the engine: its id, and what it says about its containers.

    `digest` is the one under which a registry has it; the id, if no registry has it. `names` are
    the repositories with a tag or digest under which the engine has it, `tags` those with a tag.
    `is_local`: the image was made on this machine, and no registry has it.
    """

    id: str = ""
    digest: str = ""
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    user: str = ""
    size_bytes: int = 0
    names: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    is_local: bool = False


class Host(msgspec.Struct, frozen=True):
    """The machine's part of the request.

    `init` is the path of the init program, `files` the device files of each device. `cdi`: the full
    name of each device that the engine can add by CDI, by the device's own name. `processes_max`
    bounds the processes of a job. `user` is the agent's own, "UID:GID": with an engine of its
    own (rootless) that user is root in the container. `users`: see
    `allowed.Allowed`; `taken`: see `allowed.user_of`.
    """

    init: str
    files: Mapping[GpuId, Sequence[str]]
    cdi: Mapping[str, str]
    processes_max: int
    user: str
    users: Sequence[a.Range] = ()
    taken: Sequence[a.Range] = ()


def body_of(
    spec: JobSpec,
    argv: Sequence[str],
    env: Mapping[str, str],
    ids: Sequence[int],
    held: Sequence[Gpu],
    limits: Mapping[str, Any],
    host: Host,
    image: Image,
) -> dict[str, Any]:
    """Return the request, without mounts. Raises NoContainer."""
    memory, wish = spec.memory_bytes, spec.container
    named = _named(held, env.get(NVIDIA_NAMES, ""))
    by_cdi = [host.cdi[name] for name in named] if all(name in host.cdi for name in named) else []
    by_runtime = named if not by_cdi and _is_nvidia(held) else []
    seen = {**env, RUNTIME_NAMES: ",".join(by_runtime) or NO_DEVICES}
    return {
        # By its id: a tag may have moved since the image was checked.
        "Image": image.id,
        "Entrypoint": [INIT, TETHER, *words_of(spec, argv, image)],
        "Cmd": [],
        "Env": [f"{name}={value}" for name, value in seen.items()],
        "User": _user(spec, ids, host, image),
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
            "ShmSize": (wish.shm_bytes if wish else 0) or memory // 2 or SHARED_MEMORY_BYTES,
            "Tmpfs": {
                each.target: _tmpfs(each) for each in (wish.scratch if wish else ()) if each.memory
            },
            "LogConfig": {"Type": "none"},
            "Mounts": [],
            **_devices(held, host, by_cdi, by_runtime),
        },
    }


def words_of(spec: JobSpec, argv: Sequence[str], image: Image) -> list[str]:
    """Return what the container runs: the entry point with the job's command as its arguments.

    Without a command, the image's own command is the arguments, unless the job replaces the entry
    point. Jobs older than ContainerSpec replace the entry point with their command. Raises
    NoContainer if nothing is left to run.
    """
    wish = spec.container
    if wish is None:
        return list(argv)
    words = (
        [*image.entrypoint, *(argv or image.command)]
        if wish.entrypoint is None
        else [*wish.entrypoint, *argv]
    )
    if not words:
        raise NoContainer(
            f"image {spec.image} has neither an entry point nor a command of its own: give a "
            "command after --"
        )
    return words


def _user(spec: JobSpec, ids: Sequence[int], host: Host, image: Image) -> str:
    """Return the user of the container.

    Only an agent that is root and whose jobs run as root too lets the image choose. An agent that
    is not root could otherwise make root of its user. Raises NoContainer.
    """
    wish = spec.container
    if wish is None:
        return f"{ids[0]}:{ids[1]}" if ids else host.user
    own = ids or [int(part) for part in host.user.split(":")]
    if not ids and own[0] == a.ROOT_ID:
        return wish.user or image.user or host.user
    return a.user_of(wish.user, image.user, own, host.users, host.taken)


def _tmpfs(scratch: Scratch) -> str:
    """Return the options of a scratch directory in memory."""
    size = f",size={scratch.size_bytes}" if scratch.size_bytes else ""
    return f"rw,exec,nosuid,nodev,mode=1777{size}"


def is_own_user(user: str, ids: Sequence[int], host: Host) -> bool:
    """Return whether a container's user, as `body_of` chose it, has no rights but the job's own."""
    own = f"{ids[0]}:{ids[1]}" if ids else host.user
    return user == own or own.startswith(f"{a.ROOT_ID}:")


def mounted(source: str, target: str, read_only: bool = False) -> dict[str, Any]:
    return {"Type": "bind", "Source": source, "Target": target, "ReadOnly": read_only}


def _is_nvidia(held: Sequence[Gpu]) -> bool:
    return any(gpu.vendor == "nvidia" for gpu in held)


def _named(held: Sequence[Gpu], visible: str) -> list[str]:
    """Return the names of the devices: `visible` for NVIDIA (a MIG instance has its own name)."""
    if _is_nvidia(held):
        return visible.split(",") if visible else []
    return [gpu.uuid for gpu in held]


def _devices(
    held: Sequence[Gpu], host: Host, by_cdi: Sequence[str], by_runtime: Sequence[str]
) -> dict[str, Any]:
    """Return the part of the request that names the devices.

    By CDI where a file names all of them. Else NVIDIA's go by name, because its runtime adds
    libraries, and others by their files. Simulated devices have none.
    """
    if by_cdi:
        return {"DeviceRequests": [{"Driver": "cdi", "DeviceIDs": list(by_cdi)}]}
    if by_runtime:
        wanted = {"Driver": "nvidia", "DeviceIDs": list(by_runtime), "Capabilities": [["gpu"]]}
        return {"DeviceRequests": [wanted]}
    files = [
        path
        for gpu in held
        if gpu.vendor in ("amd", "intel")
        for path in host.files.get(gpu.uuid, ())
    ]
    if any(gpu.vendor == "amd" for gpu in held):
        files.insert(0, "/dev/kfd")
    devices = [
        {"PathOnHost": path, "PathInContainer": path, "CgroupPermissions": "rwm"}
        for path in dict.fromkeys(files)
    ]
    return {"Devices": devices} if devices else {}
