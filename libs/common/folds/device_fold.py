"""Apply facts about devices to the cluster's state: one function per kind, named after the kind.

Pure and total, called by `fold.apply` only. Health and service are separate, so that facts of a
gateway commute with facts of the node. A device that is not healthy degrades its node.
"""

from libs.common import facts as f
from libs.common.change import IGNORED, Change, Stamp
from libs.common.devices.device_controls import DONE, ROWS
from libs.common.devices.error_catalogue import IGNORE
from libs.common.life import gpu_life, node_life
from libs.common.state.cluster import Claim, Cluster, Node, node_gpus, was_on
from libs.common.state.device import ERRORS_KEPT, Control, GpuError, GpuView


def faulted(cluster: Cluster, fact: f.GpuFaulted, stamp: Stamp) -> Change:
    view = _reported_device(cluster, fact)
    after = (
        gpu_life.HEALTH_LIFE.get((view.health, f"gpu.faulted:{fact.health}"))
        if view is not None
        else None
    )
    if view is None or after is None:
        return IGNORED
    view.health, view.reason, view.detail, view.verdict = (
        after,
        fact.reason,
        fact.detail,
        fact.verdict,
    )
    view.alone = fact.alone
    follow_devices(cluster, cluster.nodes[fact.node_id], "gpu.faulted")
    return Change((), (fact.node_id,))


def recovered(cluster: Cluster, fact: f.GpuRecovered, stamp: Stamp) -> Change:
    view = _reported_device(cluster, fact)
    if view is None or (view.health, "gpu.recovered") not in gpu_life.HEALTH_LIFE:
        return IGNORED
    view.health, view.reason, view.detail, view.verdict, view.alone = (
        gpu_life.HEALTHY,
        "",
        "",
        "",
        False,
    )
    follow_devices(cluster, cluster.nodes[fact.node_id], "gpu.recovered")
    return Change((), (fact.node_id,))


def error_seen(cluster: Cluster, fact: f.GpuErrorSeen, stamp: Stamp) -> Change:
    view = _reported_device(cluster, fact)
    if view is None:
        return IGNORED
    view.errors = [*view.errors, GpuError(fact.error, fact.verdict, fact.jobs, stamp.at_ns)][
        -ERRORS_KEPT:
    ]
    found = [
        job
        for ref in dict.fromkeys(fact.jobs)
        if (job := cluster.jobs.get(ref.job_id)) is not None and was_on(job, fact.node_id)
    ]
    for job in found if fact.verdict != IGNORE else ():
        job.gpu_errors = [*job.gpu_errors, (fact.uuid, fact.error)][-ERRORS_KEPT:]
    return Change(tuple(job.job_id for job in found))


def over_share(cluster: Cluster, fact: f.JobOverShare, stamp: Stamp) -> Change:
    """Change nothing: the fact informs people."""
    job = cluster.jobs.get(fact.job_id)
    return Change((fact.job_id,)) if job is not None and was_on(job, fact.node_id) else IGNORED


def service_set(cluster: Cluster, fact: f.GpuServiceSet, stamp: Stamp) -> Change:
    view = cluster.gpus.get(fact.uuid)
    if view is None or fact.service not in gpu_life.SERVICES:
        return IGNORED
    view.service = fact.service
    return Change((), (view.node_id,))


def control_requested(cluster: Cluster, fact: f.GpuControlRequested, stamp: Stamp) -> Change:
    """Store the request. It does not affect placement."""
    view = cluster.gpus.get(fact.uuid)
    if view is None or fact.control not in ROWS:
        return IGNORED
    before = view.controls.get(fact.control, Control())
    view.controls[fact.control] = Control(
        fact.value, stamp.seq, fact.user, in_force=before.in_force
    )
    for claim in cluster.contested.get(fact.uuid, ()):
        _forget_outcome(claim, fact.control)
    return Change()


def _forget_outcome(claim: Claim, control: str) -> None:
    """Drop the outcome of the previous request for this control."""
    told = claim.told.pop(control, None)
    if told is not None and told.in_force:
        claim.told[control] = Control(in_force=told.in_force)


def controlled(cluster: Cluster, fact: f.GpuControlled, stamp: Stamp) -> Change:
    """Store an outcome.

    Only the agent knows which value is in force. For a request that was replaced meanwhile, nothing
    else of the outcome counts.
    """
    view = _reported_device(cluster, fact)
    if view is None or fact.control not in ROWS:
        return IGNORED
    if isinstance(view, Claim):
        return _store_in_claim(
            view, fact, cluster.gpus[fact.uuid].controls.get(fact.control, Control()).request
        )
    control = view.controls.setdefault(fact.control, Control())
    if fact.outcome == DONE:
        control.in_force = fact.value
    if fact.request == control.request:
        control.outcome, control.detail = fact.outcome, fact.detail
    return Change()


def _store_in_claim(claim: Claim, fact: f.GpuControlled, request: int) -> Change:
    """Fold an outcome for a device that another node has. The request is kept with the device."""
    control = claim.told.pop(fact.control, Control())
    if fact.outcome == DONE:
        control.in_force = fact.value
    if fact.request == request:
        control.request, control.outcome, control.detail = fact.request, fact.outcome, fact.detail
    if control.outcome or control.in_force:
        claim.told[fact.control] = control
    return Change()


def follow_devices(cluster: Cluster, node: Node, event: str) -> None:
    """Move the node along its table, by the health of its devices; without a row it stays."""
    hurt = any(view.health != gpu_life.HEALTHY for view in node_gpus(cluster, node))
    node.state = node_life.NODE_LIFE.get(
        (node.state, f"{event}:hurt" if hurt else event), node.state
    )


def forget_health(cluster: Cluster, node: Node) -> None:
    """Clear the health that a replaced agent reported. The new agent reports what is still true."""
    for view in node_gpus(cluster, node):
        view.health, view.reason, view.detail, view.verdict, view.alone = (
            gpu_life.HEALTHY,
            "",
            "",
            "",
            False,
        )


def _reported_device(
    cluster: Cluster, fact: f.GpuFaulted | f.GpuRecovered | f.GpuErrorSeen | f.GpuControlled
) -> GpuView | Claim | None:
    """Return where the node's reports on the device are kept.

    It is the device itself, or the node's claim while another node has the device.
    """
    view = cluster.gpus.get(fact.uuid)
    if view is not None and view.node_id == fact.node_id:
        return view
    return next(
        (claim for claim in cluster.contested.get(fact.uuid, ()) if claim.node_id == fact.node_id),
        None,
    )
