"""Reads what a manifest says about its container: image, command, user, and volumes.

`command` replaces the image's entry point, `args` its arguments. `hostPath` volumes become mounts,
`emptyDir` volumes scratch directories; one in memory at /dev/shm is the size of /dev/shm. Pure.
Part of `kubernetes.py`; tests: tests/unit/test_cli_kubernetes_containers.py.
"""

from typing import Any, Final, NamedTuple

from yaml.nodes import Node

from libs.cli.formats.kubernetes_tree import Section

SHARED_MEMORY: Final = "/dev/shm"  # nosec B108
MEMORY: Final = "Memory"
# Types of a hostPath that a mount checks or needs not to; others create something or are devices.
HOST_TYPES: Final = ("", "Directory", "File")
CREATED: Final = ("DirectoryOrCreate", "FileOrCreate")


class Volume(NamedTuple):
    """One volume of the Pod: a path of the node, or an empty directory if `path` is empty."""

    path: str = ""
    memory: bool = False
    size_bytes: int = 0


def only_container(pod: Section) -> Section:
    """Return the Pod's only container. Raises Refused with the line of the second one."""
    containers = pod.sections("containers")
    if len(containers) != 1:
        at = containers[1].at if containers else pod.at
        raise pod.reading.fault(
            at,
            f"{len(containers)} containers: a job runs one program: give one container, or submit "
            "one manifest for each",
        )
    return containers[0]


def container(pod: Section, box: Section, words: list[str], replaces: bool) -> dict[str, Any]:
    """Return the command of the job, and its image with what it asks of its container.

    `words` are the command and its arguments; `replaces`: they replace the image's entry point.
    Raises Refused.
    """
    image = box.text("image")
    if not image:
        if not replaces:
            raise box.reading.fault(
                box.at, "the container has neither an image nor a 'command': give one of them"
            )
        return {"command": words} | _workdir(box)
    _policy(box)
    inner = ({"entrypoint": []} if replaces else {}) | _workdir(box)
    inner |= _user(pod, box) | _volumes(pod, box)
    job: dict[str, Any] = {"image": image, "command": words}
    return job | ({"container": inner} if inner else {})


def _workdir(box: Section) -> dict[str, Any]:
    found = box.text("workingDir")
    return {"workdir": found} if found else {}


def _policy(box: Section) -> None:
    """Take the pull policy: an image that the node has is not pulled again."""
    node = box.take("imagePullPolicy")
    if node is not None and node.value != "IfNotPresent":
        box.reading.warn(
            node,
            f"{box.path}imagePullPolicy: {node.value} is not honoured: a node pulls an image that "
            "it does not have; name a digest (IMAGE@sha256:...) to fix what runs",
        )


def _user(pod: Section, box: Section) -> dict[str, Any]:
    """Return the user of the container's security context, or of the Pod's."""
    found = {"runAsUser": -1, "runAsGroup": -1}
    for section in (pod.section("securityContext"), box.section("securityContext")):
        for name in found:
            found[name] = section.number(name, found[name])
    user, group = found.values()
    if user < 0:
        return {}
    return {"user": f"{user}:{group}" if group >= 0 else f"{user}"}


def _volumes(pod: Section, box: Section) -> dict[str, Any]:
    """Return the mounts, scratch directories and shared memory of the container."""
    known = {volume.text("name"): _volume(volume) for volume in pod.sections("volumes")}
    found: dict[str, list[dict[str, Any]]] = {"mounts": [], "scratch": []}
    shared: dict[str, Any] = {}
    for mount in box.sections("volumeMounts"):
        name, target, at = mount.text("name"), mount.text("mountPath").rstrip("/"), mount.at
        if name not in known:
            raise mount.reading.fault(
                at, f"'{mount.path}name': the Pod has no volume {name!r}: add it to volumes"
            )
        volume, inside = known[name], mount.text("subPath")
        read_only = mount.text("readOnly") == "true"
        if volume is None:
            mount.reading.warn(
                at, f"{mount.path}name: volume {name} is not honoured: only hostPath and emptyDir"
            )
        elif volume.path:
            source = f"{volume.path}/{inside}" if inside else volume.path
            found["mounts"].append({"source": source, "target": target, "read_only": read_only})
        elif inside:
            raise mount.reading.fault(
                at, f"'{mount.path}subPath': an emptyDir has nothing in it: leave subPath out"
            )
        elif target == SHARED_MEMORY:
            shared = {"shm_bytes": volume.size_bytes} if volume.size_bytes else {}
        else:
            found["scratch"].append(_scratch(target, volume))
    return {name: each for name, each in found.items() if each} | shared


def _scratch(target: str, volume: Volume) -> dict[str, Any]:
    sized = {"size_bytes": volume.size_bytes} if volume.memory and volume.size_bytes else {}
    return {"target": target} | ({"memory": True} if volume.memory else {}) | sized


def _volume(volume: Section) -> Volume | None:
    """Return a volume; None for a kind that a job cannot have. Raises Refused for one of `/`."""
    if "hostPath" in volume:
        host = volume.section("hostPath")
        path, kind, at = host.text("path").rstrip("/"), host.take("type"), host.at
        if not path:
            raise host.reading.fault(
                at,
                f"'{host.path}path' is the whole file system of the node, with the files of all "
                "tenants, and no job gets it: name the directory that the job needs",
            )
        _check_type(host, kind)
        return Volume(path)
    if "emptyDir" not in volume:
        return None
    empty = volume.section("emptyDir")
    memory, node = empty.text("medium") == MEMORY, empty.at
    size = int(empty.quantity("sizeLimit") or 0)
    if size and not memory:
        empty.reading.warn(
            node, f"{empty.path}sizeLimit: not honoured: only one in memory has a bound"
        )
    return Volume(memory=memory, size_bytes=size)


def _check_type(host: Section, kind: Node | None) -> None:
    """Warn about a path that would have to be created. Raises Refused for a socket or a device."""
    if kind is None or kind.value in HOST_TYPES:
        return
    if kind.value not in CREATED:
        raise host.reading.fault(
            kind,
            f"'{host.path}type' {kind.value}: a job can mount only files and directories; GPUs "
            "come with resources",
        )
    host.reading.warn(
        kind, f"{host.path}type: {kind.value} is not honoured: the path must exist on the node"
    )
