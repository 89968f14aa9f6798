"""The reason why each node cannot run a waiting job, counted by the nodes' hardware.

Pure. It makes the same checks as the ranking (`placement/ranking.py`), from what never changes to
what is free now, and names the first one that fails.
"""

from collections import Counter
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from libs.common.devices.means import FLAGS, lacking, why_lacking
from libs.common.model import WHOLE_GPU, GpuId, NodeId
from libs.common.state.cluster import Cluster, GpuView, Job, Node, is_leaving, node_gpus
from services.scheduler.explain.asker import jobs_named
from services.scheduler.placement.place import Place, fits, host_serves
from services.scheduler.placement.resource_request import ResourceRequest, part_bytes
from services.scheduler.placement.sharing_domains import sharing_domain_of
from services.scheduler.state.state import State

Blocker = dict[str, Any]

NAMED_MAX: Final = 8
REFUSED: Final = "refused this job lately"


class No(NamedTuple):
    """The reason why a node cannot take a member now.

    `{most}` in `words` becomes the largest `have` of all nodes with these words.
    """

    words: str
    have: int = 0


class Nodes(NamedTuple):
    """The number of nodes that could take a member now, and the blockers of the others."""

    serving: int
    blockers: list[Blocker]


def node_blockers(state: State, job: Job) -> Nodes:
    """Count the nodes that cannot take a member now, by build and reason; the largest
    class first.
    """
    request = state.queue.request(job)
    classes: dict[tuple[str, str], list[tuple[int, NodeId]]] = {}
    for node in state.cluster.nodes.values():
        no = _exclusion(state, node, job, request)
        if no is not None:
            build = build_of(state.cluster, node, len(node.gpus))
            classes.setdefault((no.words, build), []).append((no.have, node.node_id))
    found = [
        blocker(
            words.format(most=max(have for have, _ in nodes)),
            len(nodes),
            named([node_id for _, node_id in nodes]),
            build,
        )
        for (words, build), nodes in sorted(classes.items(), key=lambda item: -len(item[1]))
    ]
    return Nodes(len(state.cluster.nodes) - sum(each["count"] for each in found), found)


def blocker(what: str, count: int, detail: str, build: str = "") -> Blocker:
    return {"what": what, "count": count, "detail": detail, "build": build}


def build_of(cluster: Cluster, node: Node, gpus: int) -> str:
    """Return the node's GPUs in words, for example "8 x H100"."""
    models = Counter(view.gpu.model for view in node_gpus(cluster, node))
    if not gpus or not models:
        return "no GPU"
    if len(models) == 1:
        return f"{gpus} x {next(iter(models))}"
    return " + ".join(f"{count} x {model}" for model, count in models.items())


def named(nodes: list[NodeId]) -> str:
    return ", ".join(sorted(nodes)[:NAMED_MAX]) + (" ..." if len(nodes) > NAMED_MAX else "")


def _exclusion(state: State, node: Node, job: Job, request: ResourceRequest) -> No | None:
    if not node.usable:
        return No(f"node {node.state}")
    if node.revoked:
        return No("node revoked: the servers refuse its key")
    if node.distrusted:
        return No("node distrusted, until its agent starts again")
    if node.withheld:
        return No(_plain(f"node withheld: {node.withheld}"))
    if node.is_drained:
        return No(_plain(f"node drained by the scheduler: {node.drain_evidence}"))
    if is_leaving(state.cluster, node.node_id):
        return No("node is to be removed")
    place = state.capacity.places[state.capacity.index[node.node_id]]
    assert place is not None, "a usable node has a place"
    views = [view for view in node_gpus(state.cluster, node) if view.present]
    if len(views) < request.gpus:
        return No(f"fewer than {request.gpus} GPUs")
    if sum(1 for view in views if request.need(view.gpu)) < request.gpus:
        uncut = sum(1 for view in views if request.need(replace(view.gpu, mig=False)))
        if small := _pool_no(views, request):
            return small
        return No(
            "GPUs in MIG mode, of which only instances can be used"
            if uncut >= request.gpus
            else "GPUs of another kind than requested"
        )
    healthy = sum(1 for view in views if view.takes_work)
    if healthy < request.gpus:
        why = ", ".join(sorted({view.away for view in views if not view.takes_work}))
        return No(
            f"GPUs unavailable ({why}): needs {request.gpus}, at most {{most}} there", healthy
        )
    fabric = next((view.detail for view in views if view.alone), "")
    if request.gpus > 1 and not request.mig_profile and fabric:
        return No(_plain(f"NVLink fabric not up, so only jobs with one GPU: {fabric}"))
    return _host_no(place, request) or _device_no(
        state, place, request, sharing_domain_of(state.cluster, job.tenant)
    )


def _pool_no(views: list[GpuView], request: ResourceRequest) -> No | None:
    """Return the reason if only the pool rules the node's GPUs out."""
    without = replace(request, pool=0)
    parts = [part_bytes(view.gpu, without.need(view.gpu)) for view in views]
    if not request.pool or sum(1 for part in parts if part) < request.gpus:
        return None
    what = "GPUs" if request.whole else "parts of GPUs"
    return No(
        f"{what} too small for the pool: {request.pool >> 20} MiB each, at most {{most}} MiB there",
        max(parts) >> 20,
    )


def _host_no(place: Place, request: ResourceRequest) -> No | None:
    if place.node_id in request.excluded:
        return No(REFUSED)
    lack = lacking(place.node.isolation, request.means)
    if lack:
        return No(_lost(lack, why_lacking(place.node.isolation, lack)))
    if request.node_list and place.node_id not in request.node_list:
        return No("not in the job's list of nodes")
    if any(place.node.labels.get(name) != value for name, value in request.labels):
        return No("labels differ from the request")
    if not place.admits(request):
        return No("runs a job with a label of the anti-affinity")
    if request.cpus_milli > place.node.cpus_milli or request.memory_bytes > place.node.memory_bytes:
        return No("too few CPUs or too little memory")
    return None if host_serves(place, request) else No("CPUs or memory in use")


def _lost(means: str, why: str) -> str:
    return _plain(f"{FLAGS[means]} is not available there: {why}")


def _plain(why: str) -> str:
    """Escape the node's own words for `str.format`."""
    return why.replace("{", "{{").replace("}", "}}")


def _device_no(
    state: State, place: Place, request: ResourceRequest, sharing_domain: str
) -> No | None:
    needs = place.needs(request)
    if next(fits(place, request, sharing_domain, needs), None) is not None:
        return None
    free = {index: part.free for index, part in place.parts.items()}
    free |= {index: WHOLE_GPU for index in range(len(needs.parts)) if place.whole >> index & 1}
    enough = [index for index, left in free.items() if 0 < needs.parts[index] <= left]
    if len(enough) < request.gpus:
        kept = [
            view for view in place.views if view.gpu.uuid in _reserved(place) and not view.holds
        ]
        if len(enough) + len(kept) >= request.gpus:
            return No(f"GPUs reserved for {jobs_named(state, place.node.reserved)}")
        return No(f"GPUs in use: needs {request.gpus}, at most {{most}} free", len(enough))
    open_to = [
        index
        for index in enough
        if index not in place.parts or place.parts[index].sharing_domain == sharing_domain
    ]
    if len(open_to) < request.gpus:
        return No("GPUs with another tenant's jobs")
    alike = [
        index
        for index in open_to
        if index not in place.parts or place.parts[index].isolation == request.isolation
    ]
    if len(alike) < request.gpus:
        return No("GPUs whose fractions are isolated in another way")
    if request.mig_profile:
        return No("no free place for the MIG instance")
    models = Counter(place.gpus[index].model for index in alike)
    if not request.mixed and max(models.values()) < request.gpus:
        return No(f"free GPUs of different models: needs {request.gpus} of one")
    return No(f"enough free GPUs, but not together as required ({', '.join(request.required)})")


def _reserved(place: Place) -> list[GpuId]:
    return [hold.uuid for member in place.node.reserved.values() for hold in member.gpus]
