"""Converts a Kubernetes Pod or Job with one container to a job.

It reads the image and the command, volumes, resources, node selection and retries, annotations of
`kaiwo.ai` and `muster`, and thousandths of `amd.com/gpu`. Each part that a job cannot honour is a
warning with its line (`kubernetes_tree.py`). Pure. Tests: tests/unit/test_cli_kubernetes.py.
"""

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Final

from yaml.nodes import MappingNode, Node

from libs.cli.formats.job_fields import Written
from libs.cli.formats.kubernetes_container import container, only_container
from libs.cli.formats.kubernetes_tree import Reading, Section, quantity_of
from libs.cli.formats.kubernetes_where import where
from libs.cli.formats.pools import POOLS, pool_bytes
from libs.cli.formats.yaml_nodes import fault, place
from libs.common import arrays
from libs.common.model import MIG, MPS, TIME_SLICE, WHOLE_GPU

KINDS: Final = ("Pod", "Job")
VENDORS: Final = {
    "amd.com/gpu": "amd",
    "nvidia.com/gpu": "nvidia",
    "gpu.intel.com/i915": "intel",
    "gpu.intel.com/xe": "intel",
}
MIG_RESOURCE: Final = "nvidia.com/mig-"
ISOLATIONS: Final = {"none": "", "mps": MPS, "mig": MIG, "time-slicing": TIME_SLICE}
KAIWO: Final = "kaiwo.ai/"
# Annotations for what Kubernetes does not have, by the fields of a job.
OWN: Final = {f"muster/{name}": field for name, field in POOLS.items()}
# The default of Kubernetes for a Job.
BACKOFF_LIMIT: Final = 6

_REFERENCE: Final = re.compile(r"\$(\$|\(([A-Za-z_][A-Za-z0-9_.-]*)\))")


def is_manifest(node: Node) -> bool:
    return isinstance(node, MappingNode) and any(
        getattr(key, "value", "") == "apiVersion" for key, _ in node.value
    )


def read_manifest(node: Node, name: str) -> Written:
    """Return the job of a manifest. Raises Refused with file, line and the expected content."""
    reading = Reading(name)
    root = Section(reading, node, "", node)
    root.take("apiVersion")
    root.take("status")
    kind = root.text("kind")
    if kind not in KINDS:
        raise fault(
            name,
            node,
            (
                f"kind '{kind}' is not supported, only {' and '.join(KINDS)}; to serve a model, "
                "use muster deploy"
            ),
        )
    outer, spec = root.section("metadata"), root.section("spec")
    if kind == "Job":
        template = spec.section("template")
        inner, pod = template.section("metadata"), template.section("spec")
    else:
        inner, pod = Section(reading, None, "", node), spec
    job = (
        _held(kind, spec)
        | _named(outer, inner)
        | _container(pod, _annotations(outer, inner))
        | where(pod)
        | _tries(kind, spec, pod)
    )
    if limit := pod.number("activeDeadlineSeconds", 0) or spec.number("activeDeadlineSeconds", 0):
        job["time_limit_s"] = limit
    if (grace := pod.number("terminationGracePeriodSeconds", -1)) >= 0:
        job["grace_s"] = grace
    return Written(place(name, node), job, reading.warnings())


def _named(*metadata: Section) -> dict[str, Any]:
    """Return the name of the outer metadata and the labels of both."""
    names = [
        section.text("name") or section.text("generateName").rstrip("-") for section in metadata
    ]
    labels = {
        key: value for section in metadata for key, value, _ in section.section("labels").pairs()
    }
    return {"name": names[0]} | ({"labels": labels} if labels else {})


def _annotations(*metadata: Section) -> dict[str, tuple[str, Node]]:
    """Return the `kaiwo.ai` annotations without that prefix, and those of `OWN`; warn about
    others.
    """
    found = {}
    for section in metadata:
        for key, value, node in section.section("annotations").pairs():
            if key.startswith(KAIWO):
                found[key.removeprefix(KAIWO)] = (value, node)
            elif key in OWN:
                found[key] = (value, node)
            else:
                section.reading.warn(node, f"annotation {key}: not honoured")
    return found


def _held(kind: str, spec: Section) -> dict[str, Any]:
    """Return `hold` for a suspended Job."""
    node = spec.take("suspend") if kind == "Job" else None
    return {"hold": True} if node is not None and str(node.value).lower() == "true" else {}


def _tries(kind: str, spec: Section, pod: Section) -> dict[str, Any]:
    """Return the retries: `backoffLimit` for a Job, none for a Pod."""
    node = pod.take("restartPolicy")
    if kind == "Pod":
        if node is not None and node.value != "Never":
            pod.reading.warn(
                node,
                (
                    f"{pod.path}restartPolicy: {node.value} is not honoured: a Pod runs once; use "
                    "muster submit --retries or muster deploy"
                ),
            )
        return {"retries": 0}
    retries = spec.number("backoffLimitPerIndex", -1)
    return {
        "retries": retries if retries >= 0 else spec.number("backoffLimit", BACKOFF_LIMIT)
    } | _completions(spec)


def _completions(spec: Section) -> dict[str, Any]:
    """Return the job array for `completions`.

    A Job without `completions` ends with its first Pod, so it is not an array.
    """
    at = spec.at
    completions, parallelism = spec.number("completions", 0), spec.number("parallelism", 1)
    spec.take("completionMode")
    if completions > arrays.ELEMENTS_MAX or parallelism > arrays.ELEMENTS_MAX:
        raise spec.reading.fault(
            at, f"'{spec.path}completions' and parallelism must be at most {arrays.ELEMENTS_MAX}"
        )
    if not completions and parallelism > 1:
        spec.reading.warn(
            at,
            (
                f"{spec.path}parallelism: {parallelism} is not honoured without completions: one "
                "job is submitted"
            ),
        )
    if completions < 2:
        return {}
    return {
        "array": f"0-{completions - 1}"
        + (f"%{parallelism}" if 0 < parallelism < completions else "")
    }


def _container(pod: Section, annotations: Mapping[str, tuple[str, Node]]) -> dict[str, Any]:
    box = only_container(pod)
    env = _environment(box)
    box.take("name")
    replaces = "command" in box
    words = [_expanded(word, env) for word in (*box.texts("command"), *box.texts("args"))]
    job = container(pod, box, words, replaces)
    return job | ({"env": env} if env else {}) | _resources(box, annotations)


def _environment(box: Section) -> dict[str, str]:
    found: dict[str, str] = {}
    for variable in box.sections("env"):
        name, value = variable.text("name"), variable.text("value")
        if "valueFrom" not in variable:
            found[name] = _expanded(value, found)
    return found


def _expanded(word: str, env: Mapping[str, str]) -> str:
    """Replace `$(NAME)` by a known variable, and `$$` by `$`, as Kubernetes does."""
    return _REFERENCE.sub(
        lambda found: "$" if found[1] == "$" else env.get(found[2], found[0]), word
    )


def _resources(box: Section, annotations: Mapping[str, tuple[str, Node]]) -> dict[str, Any]:
    resources = box.section("resources")
    limits, requests = resources.section("limits"), resources.section("requests")
    sharing = _sharing(box.reading, annotations)
    job = (
        _devices(
            limits, requests, 1 if "gpu_share" in sharing or "gpu_memory_bytes" in sharing else 0
        )
        | sharing
        | _pools(box.reading, annotations)
    )
    cpus, memory = (_quantity(limits, requests, key) for key in ("cpu", "memory"))
    if cpus or not job["gpus"]:
        job["cpus"] = float(cpus or 1)
    return job | ({"memory_bytes": int(memory)} if memory else {})


def _quantity(limits: Section, requests: Section, key: str) -> Fraction | None:
    """Return the request for a resource, or its limit if there is no request."""
    limit, request = limits.quantity(key), requests.quantity(key)
    if None not in (limit, request) and limit != request:
        limits.reading.warn(
            limits.at,
            f"{limits.path}{key}: not honoured: only the request is reserved and enforced",
        )
    return limit if request is None else request


def _devices(limits: Section, requests: Section, otherwise: int) -> dict[str, Any]:
    """Return the GPUs, whole ones or a part of one; `otherwise` is the number if none is named.

    Raises Refused for two kinds of GPUs.
    """
    found: dict[str, Any] = {}
    for key in dict.fromkeys(
        key.value for section in (limits, requests) for key, _ in section.left()
    ):
        if key not in VENDORS and not key.startswith(MIG_RESOURCE):
            continue
        count = _quantity(limits, requests, key)
        if count is None:
            continue
        if found:
            raise limits.reading.fault(
                requests.at, "a job can use only one kind of GPU: remove one of the resources"
            )
        found = (
            {"vendor": VENDORS[key]}
            if key in VENDORS
            else {"vendor": "nvidia", "mig_profile": key.removeprefix(MIG_RESOURCE)}
        )
        found |= _count(limits, key, count)
    return found or {"gpus": otherwise}


def _count(limits: Section, key: str, count: Fraction) -> dict[str, Any]:
    """Return the fields for a count: `2` means two GPUs, `500m` half of one."""
    share = count * WHOLE_GPU
    if count.denominator == 1:
        return {"gpus": int(count)}
    if count < 1 and share.denominator == 1:
        return {"gpus": 1, "gpu_share": int(share)}
    raise limits.reading.fault(
        limits.at, f"{key}: use whole GPUs, or 10m to 990m of one in steps of 10m"
    )


def _sharing(reading: Reading, annotations: Mapping[str, tuple[str, Node]]) -> dict[str, Any]:
    """Return the fields for Kaiwo's annotations about parts of a GPU."""
    job: dict[str, Any] = {}
    for name, (value, node) in annotations.items():
        if name in OWN:
            continue
        text = f"annotation {KAIWO}{name}"
        if name == "gpu-fraction":
            job["gpu_share"] = _hundredths(reading, node, value)
        elif name == "gpu-memory" and "gpu-fraction" in annotations:
            reading.warn(
                node, f"{text}: not honoured: gpu-fraction is set too and takes precedence"
            )
        elif name == "gpu-memory":
            job["gpu_memory_bytes"] = _mebibytes(reading, node, value)
        elif name == "gpu-isolation" and value in ISOLATIONS:
            job["isolation"] = ISOLATIONS[value]
        elif name != "gpu-sharing" or value != "true":
            reading.warn(node, f"{text}: not honoured")
    return job


def _pools(reading: Reading, annotations: Mapping[str, tuple[str, Node]]) -> dict[str, Any]:
    """Return the memory pools of the job. Raises Refused for a size that is not one of a pool."""
    job: dict[str, Any] = {}
    for name in sorted(OWN.keys() & annotations.keys()):
        value, node = annotations[name]
        size = quantity_of(value)
        if size is None:
            raise reading.fault(
                node, f"annotation {name} must be a quantity such as 16Gi, not {value!r}"
            )
        try:
            job[OWN[name]] = pool_bytes(size)
        except ValueError as error:
            raise reading.fault(node, f"annotation {name}: {value!r}: {error}") from None
    return job


def _hundredths(reading: Reading, node: Node, value: str) -> int:
    try:
        share = Fraction(value) * WHOLE_GPU
    except (ValueError, ZeroDivisionError):
        share = Fraction(0)
    if share.denominator != 1 or not 1 <= share <= WHOLE_GPU:
        raise reading.fault(
            node, f"{KAIWO}gpu-fraction must be 0.01 to 1.0 in steps of 0.01, not {value!r}"
        )
    return int(share)


def _mebibytes(reading: Reading, node: Node, value: str) -> int:
    if not (value.isascii() and value.isdigit() and len(value) <= 9 and int(value)):
        raise reading.fault(node, f"{KAIWO}gpu-memory must be a whole number of MiB, not {value!r}")
    return int(value) << 20
