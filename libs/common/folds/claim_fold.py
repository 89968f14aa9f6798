"""Decides which node has a device when several nodes register the same UUID.

Pure and total, called by `node_fold` and `membership_fold`. A UUID belongs to its node until that
node is lost or removed, or registers without it. Then it goes to the node that has registered it
longest. A node that reports the device as absent yields it to a node that shows it, and gets it
back when it shows it again. The owner is a function of the registrations and of the lost
incarnations. So a NodeLost and a NodeRegistered that crossed on the wire lead to the same state in
every order. Tests: tests/unit/test_claims.py and tests/property/test_commute.py.
"""

from typing import Final

from libs.common import facts as f
from libs.common.change import Stamp
from libs.common.folds.device_fold import follow_devices
from libs.common.life import gpu_life
from libs.common.model import Gpu, GpuId, NodeId
from libs.common.state.cluster import Claim, Cluster, GpuView, Node, is_removed
from libs.common.state.device import Control

# UUIDs that one node may ever bring into the fold, with those that vanished. Further devices of
# that node are ignored.
UUIDS_MAX: Final = 1_024
# Registrations that a claim remembers: the oldest, which decides about the device, and the latest.
BIRTHS_MAX: Final = 64


def take_inventory(
    cluster: Cluster, node: Node, fact: f.NodeRegistered, stamp: Stamp
) -> tuple[NodeId, ...]:
    """Fold a node's registered devices.

    Return the other nodes whose devices changed. A device that vanished stays known, not present.
    """
    listed = {gpu.uuid: gpu for gpu in fact.gpus}
    touched: list[NodeId] = []
    for uuid in node.listed or node.gpus:
        if uuid not in listed:
            touched += _drop(cluster, node, uuid)
    node.gpus_ignored = 0
    for uuid, gpu in list(listed.items()):
        others = _claim(cluster, node, gpu, (fact.incarnation, stamp.seq))
        if others is None:
            del listed[uuid]
            node.gpus_ignored += 1
        touched += others or ()
    node.gpus = [uuid for uuid in listed if cluster.gpus[uuid].node_id == node.node_id]
    node.listed = list(listed) if any(uuid in cluster.contested for uuid in listed) else []
    return _follow(cluster, [node_id for node_id in touched if node_id != node.node_id])


def settle(cluster: Cluster, node: Node) -> tuple[NodeId, ...]:
    """Give the devices of a lost or removed node to the nodes that claim them.

    Return the nodes whose devices changed.
    """
    contested = [
        uuid
        for uuid, claims in cluster.contested.items()
        if any(claim.node_id == node.node_id for claim in claims)
    ]
    return _follow(cluster, [node_id for uuid in contested for node_id in _settle(cluster, uuid)])


def claim_of(cluster: Cluster, uuid: GpuId, node_id: NodeId) -> Claim | None:
    """Return the node's claim on a UUID that several nodes claim; None if it has none."""
    return next(
        (claim for claim in cluster.contested.get(uuid, ()) if claim.node_id == node_id), None
    )


def forget_reports(cluster: Cluster, node: Node) -> None:
    """Clear the health that the node reported for devices that another node has."""
    for uuid in node.listed:
        claim = claim_of(cluster, uuid, node.node_id)
        if claim is not None:
            _forget_health(claim)


def _forget_health(claim: Claim) -> None:
    claim.health, claim.reason, claim.detail, claim.verdict, claim.alone = (
        gpu_life.HEALTHY,
        "",
        "",
        "",
        False,
    )


def _forget(claim: Claim) -> None:
    """Clear the claim: the device now holds what the node reported."""
    _forget_health(claim)
    claim.errors, claim.told = [], {}


def _claim(cluster: Cluster, node: Node, gpu: Gpu, birth: tuple[int, int]) -> list[NodeId] | None:
    """Return the nodes whose devices changed; None if the node has registered too many UUIDs."""
    view = cluster.gpus.get(gpu.uuid)
    claims = cluster.contested.get(gpu.uuid)
    own = claim_of(cluster, gpu.uuid, node.node_id)
    if claims is None and view is not None and (view.node_id == node.node_id or not view.present):
        before, view.gpu, view.node_id, view.present = view.node_id, gpu, node.node_id, True
        return [before]
    if own is not None:
        own.gpu, own.births = gpu, [own.births[0], *own.births[1:][2 - BIRTHS_MAX :], birth]
        return _settle(cluster, gpu.uuid)
    if node.known >= UUIDS_MAX:
        return None
    node.known += 1
    if view is None:
        cluster.gpus[gpu.uuid] = GpuView(node.node_id, gpu)
        return []
    if claims is None:
        claims = cluster.contested[gpu.uuid] = [_present_claim(cluster, view)]
    claims.append(Claim(node.node_id, gpu, [birth]))
    return _settle(cluster, gpu.uuid)


def _present_claim(cluster: Cluster, view: GpuView) -> Claim:
    """Return a claim for the node that has the device. It is older than any other claim."""
    owner = cluster.nodes[view.node_id]
    owner.listed = owner.listed or list(owner.gpus)
    return Claim(owner.node_id, view.gpu, [(owner.incarnation, 0)])


def _drop(cluster: Cluster, node: Node, uuid: GpuId) -> list[NodeId]:
    """Fold a registration without the device."""
    view, claims = cluster.gpus[uuid], cluster.contested.get(uuid)
    if claims is None:
        view.present = view.present and view.node_id != node.node_id
        return []
    left = [claim for claim in claims if claim.node_id != node.node_id]
    if len(left) > 1:
        cluster.contested[uuid] = left
        return _settle(cluster, uuid)
    del cluster.contested[uuid]
    return _give(view, left[0], None)


def _settle(cluster: Cluster, uuid: GpuId) -> list[NodeId]:
    view, claims = cluster.gpus[uuid], cluster.contested[uuid]
    for claim in claims:
        lost = cluster.nodes[claim.node_id].lost
        claim.births = [birth for birth in claim.births if birth[0] > lost] or claim.births[-1:]
    valid = [claim for claim in claims if _is_valid(cluster, claim)]
    first = min(
        valid or claims,
        key=lambda claim: (uuid in cluster.nodes[claim.node_id].absent, claim.births[0][1]),
    )
    return _give(view, first, claim_of(cluster, uuid, view.node_id))


def _is_valid(cluster: Cluster, claim: Claim) -> bool:
    return claim.births[-1][0] > cluster.nodes[claim.node_id].lost and not is_removed(
        cluster, claim.node_id
    )


def _give(view: GpuView, to: Claim, before: Claim | None) -> list[NodeId]:
    """Give the device to the node of `to`.

    Reports of the node that had the device go back to its claim.
    """
    view.gpu = to.gpu
    if view.node_id == to.node_id:
        return []
    if before is not None:
        before.health, before.reason, before.detail, before.verdict = (
            view.health,
            view.reason,
            view.detail,
            view.verdict,
        )
        before.alone = view.alone
        before.errors = view.errors
        before.told = {
            name: _reported(control)
            for name, control in view.controls.items()
            if control.outcome or control.in_force
        }
    view.health, view.reason, view.detail, view.verdict = (
        to.health,
        to.reason,
        to.detail,
        to.verdict,
    )
    view.alone = to.alone
    view.errors, view.controls = to.errors, _controls(view.controls, to.told)
    _forget(to)
    moved = [view.node_id, to.node_id]
    view.node_id = to.node_id
    return moved


def _reported(control: Control) -> Control:
    """Return the part of a control that the node reports."""
    return Control(
        value="",
        request=control.request if control.outcome else 0,
        user="",
        outcome=control.outcome,
        detail=control.detail,
        in_force=control.in_force,
    )


def _controls(wishes: dict[str, Control], reports: dict[str, Control]) -> dict[str, Control]:
    """Join the controls that operators asked for with the outcomes that this node reported."""
    found = {}
    for name in dict.fromkeys((*(name for name, wish in wishes.items() if wish.request), *reports)):
        wish, report = wishes.get(name, Control()), reports.get(name, Control())
        found[name] = Control(wish.value, wish.request, wish.user, in_force=report.in_force)
        if report.outcome and report.request == wish.request:
            found[name].outcome, found[name].detail = report.outcome, report.detail
    return found


def _follow(cluster: Cluster, touched: list[NodeId]) -> tuple[NodeId, ...]:
    """Update the device lists of these nodes."""
    nodes = tuple(dict.fromkeys(touched))
    for node_id in nodes:
        node = cluster.nodes[node_id]
        mine = [uuid for uuid in node.listed or node.gpus if cluster.gpus[uuid].node_id == node_id]
        if mine != node.gpus:
            node.gpus = mine
            follow_devices(cluster, node, "gpu.moved")
    return nodes
