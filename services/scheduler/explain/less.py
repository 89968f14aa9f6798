"""Changes to a smaller request: fewer GPUs or nodes, a smaller part of each GPU, smaller pools,
fewer host resources, or one constraint less.

Pure. Smaller steps come first, so the first change that starts the job gives up the least.
"""

from collections.abc import Iterator
from typing import Any, Final

from msgspec.structs import replace

from libs.common.model import LEVELS, PREFERRED, REQUIRED, WHOLE_GPU
from libs.common.quantities import counted
from libs.common.state.cluster import Job
from services.scheduler.explain.change import Change, again, changeable
from services.scheduler.state.state import State

GIB: Final = 1 << 30
MIB: Final = 1 << 20
# Up to this number each smaller one is tried; above it, its eighths.
EACH_UP_TO: Final = 9
SHARES: Final = (75, 50, 33, 25, 20, 10, 5, 1)


def gpus(state: State, job: Job) -> Iterator[Change]:
    """Ask for fewer GPUs on each node."""
    for count in _below(job.spec.gpus) if changeable(job) else ():
        yield again(
            job,
            f"submit it again with {counted(count, 'GPU')} a node instead of {job.spec.gpus}",
            replace(job.spec, gpus=count),
        )


def nodes(state: State, job: Job) -> Iterator[Change]:
    """Ask for fewer nodes."""
    for count in _below(job.spec.nodes) if changeable(job) else ():
        yield again(
            job,
            f"submit it again on {counted(count, 'node')} instead of {job.spec.nodes}",
            replace(job.spec, nodes=count),
        )


def shares(state: State, job: Job) -> Iterator[Change]:
    """Ask for a smaller part of each GPU."""
    spec = job.spec
    if not changeable(job) or not spec.gpus or spec.mig_profile:
        return
    if spec.gpu_memory_bytes:
        for size in _eighths(spec.gpu_memory_bytes):
            yield again(
                job,
                f"submit it again with {_size(size)} of each GPU's memory",
                replace(job.spec, gpu_memory_bytes=size),
            )
        return
    for share in SHARES:
        if share < spec.gpu_share:
            before = "all of it" if spec.gpu_share == WHOLE_GPU else f"{spec.gpu_share} %"
            yield again(
                job,
                f"submit it again with {share} % of each GPU instead of {before}",
                replace(job.spec, gpu_share=share),
            )


def pools(state: State, job: Job) -> Iterator[Change]:
    """Ask for smaller memory pools."""
    spec = job.spec
    if not changeable(job) or not spec.pools_on_node_bytes:
        return
    for field, flag in (("pool_bytes", "--pool"), ("host_pool_bytes", "--host-pool")):
        before = getattr(spec, field)
        for size in _eighths(before):
            what = f"submit it again with {flag} {_mib(size)} instead of {_mib(before)}"
            yield again(job, what, replace(spec, **{field: size}))


def larger_parts(state: State, job: Job) -> Iterator[Change]:
    """Ask for a larger part of each GPU, which contains the pool."""
    spec = job.spec
    if not changeable(job) or not spec.pool_bytes or spec.gpu_memory_bytes:
        return
    for share in sorted((*SHARES, WHOLE_GPU)):
        if spec.gpu_share < share:
            what = f"submit it again with {share} % of each GPU, which contains its pool"
            yield again(job, what, replace(spec, gpu_share=share))


def host(state: State, job: Job) -> Iterator[Change]:
    """Ask for fewer CPUs or less host memory."""
    if not changeable(job):
        return
    for milli in _eighths(job.spec.cpus_milli):
        what = (
            f"submit it again with {milli / 1_000:g} CPUs a node instead of "
            f"{job.spec.cpus_milli / 1_000:g}"
        )
        yield again(job, what, replace(job.spec, cpus_milli=milli))
    for size in _eighths(job.spec.memory_bytes):
        what = (
            f"submit it again with {_size(size)} of host memory instead of "
            f"{_size(job.spec.memory_bytes)}"
        )
        yield again(job, what, replace(job.spec, memory_bytes=size))


def constraints(state: State, job: Job) -> Iterator[Change]:
    """Give up one constraint."""
    for what, fields in _dropped(job) if changeable(job) else ():
        yield again(job, f"submit it again without {what}", replace(job.spec, **fields))


def _dropped(job: Job) -> Iterator[tuple[str, dict[str, Any]]]:
    spec = job.spec
    for level in LEVELS:
        if getattr(spec, level) == REQUIRED:
            yield f"--{level} required", {level: PREFERRED}
    if not spec.allow_cross_numa:
        yield "--no-cross-numa", {"allow_cross_numa": True}
    for word, (field, nothing) in _PLAIN.items():
        if getattr(spec, field) != nothing:
            yield f"{word} {_value_text(getattr(spec, field))}", {field: nothing}
    for word, field in (("--node-label", "node_labels"), ("--anti-affinity", "anti_affinity")):
        pairs: dict[str, str] = getattr(spec, field)
        for name, value in pairs.items():
            yield (
                f"{word} {name}={value}",
                {field: {other: pairs[other] for other in pairs if other != name}},
            )
    if spec.nodes > 1 and not spec.mixed and spec.gpus:
        yield "GPUs of one model on all nodes (add --mixed)", {"mixed": True}


_PLAIN: Final[dict[str, tuple[str, object]]] = {
    "--gpu-model": ("model", ()),
    "--vendor": ("vendor", ""),
    "--gpu-memory-min": ("memory_total_min_bytes", 0),
    "--compute-capability": ("compute_capability_min", (0, 0)),
    "--isolation": ("isolation", ""),
    "--image": ("image", ""),
    "--nodelist": ("node_list", ()),
    "--gpu-uuid": ("gpu_uuids", ()),
}


def _value_text(value: object) -> str:
    if isinstance(value, tuple):
        return (".".join if all(isinstance(each, int) for each in value) else ",".join)(
            map(str, value)
        )
    return _size(value) if isinstance(value, int) else str(value)


def _below(count: int) -> list[int]:
    """Return the numbers to try below this one, the largest first."""
    return list(range(count - 1, 0, -1)) if count <= EACH_UP_TO else _eighths(count)


def _eighths(count: int) -> list[int]:
    found = [count * part // 8 for part in range(7, 0, -1)]
    return [each for each in dict.fromkeys(found) if 0 < each < count]


def _mib(count: int) -> str:
    return f"{count >> 20}MiB" if count >= MIB else str(count)


def _size(count: int) -> str:
    return f"{count / GIB:.4g} GiB"
