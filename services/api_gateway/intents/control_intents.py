"""Requests of operators to change device controls (`libs/common/devices/device_controls.py`).

Pure. A value is checked against the range that the device's node reported. Whether the device has
the control at all is the driver's answer, because a driver upgrade may add it. A control that needs
a free device is refused while jobs hold the device, unless the device is draining: then the node
applies it when the jobs have ended. Tests: tests/unit/test_gateway_control_intents.py.
"""

from collections.abc import Sequence
from typing import Final

from libs.common.devices import device_controls
from libs.common.devices.partition import on_cards_of
from libs.common.errors import Refused
from libs.common.facts import GpuControlRequested
from libs.common.life import gpu_life
from libs.common.model import job_of
from libs.common.state.cluster import Cluster, GpuView, node_gpus
from services.api_gateway.intents import job_intents
from services.api_gateway.problems import Problem

CONTROL_FIELDS: Final = ("value", "user")
NAMED_MAX: Final = 8


def control(
    body: object, name: str, views: Sequence[GpuView], cluster: Cluster
) -> list[GpuControlRequested]:
    """Return the facts for `PUT .../controls/NAME` of these devices.

    Raises Refused, Problem 404 for an unknown control, and Problem 409 if the control cannot be
    changed now.
    """
    if name not in device_controls.ROWS:
        known = ", ".join(device_controls.ROWS)
        raise Problem(404, f"control {name[:32]!r} does not exist: use one of {known}")
    values = job_intents.body_fields(body, CONTROL_FIELDS)
    value, user = values.get("value", ""), job_intents.take_user(values)
    if not isinstance(value, str) or not (value or device_controls.ROWS[name].once):
        raise Refused(
            f"value: {value!r} is not valid: give {device_controls.ROWS[name].takes}, or "
            f"{device_controls.DEFAULT}, as text"
        )
    for view in views:
        _check_reachable(view, cluster)
    if device_controls.needs_free(name):
        _check_free(name, [*views, *_on_their_cards(views, cluster)])
    return [
        GpuControlRequested(
            uuid=view.gpu.uuid,
            control=name,
            value=device_controls.read(name, value, view.gpu),
            user=user,
        )
        for view in views
    ]


def _check_reachable(view: GpuView, cluster: Cluster) -> None:
    """Raise Problem 409 if the device is lost or its agent is too old for controls."""
    node = cluster.nodes[view.node_id]
    if not view.present:
        text = (
            f"GPU {view.gpu.uuid} is lost: the agent of node {view.node_id} did not find it when "
            "it started: check the device, then restart the agent"
        )
        raise Problem(409, text)
    if not node.takes_controls:
        text = f"the agent of node {view.node_id} is too old for device controls: upgrade it"
        raise Problem(409, text)


def _on_their_cards(views: Sequence[GpuView], cluster: Cluster) -> list[GpuView]:
    """Return the other MIG instances and parts on the cards of these devices."""
    parts = [
        each
        for view in views
        for each in node_gpus(cluster, cluster.nodes[view.node_id])
        if each.present
    ]
    cards = on_cards_of((each.gpu.uuid for each in parts), (view.gpu.uuid for view in views))
    return [cluster.gpus[uuid] for uuid in cards if all(uuid != view.gpu.uuid for view in views)]


def _check_free(name: str, views: Sequence[GpuView]) -> None:
    held = [view for view in views if view.holds and view.service == gpu_life.ONLINE]
    holders = list(dict.fromkeys(job_of(key) for view in held for key in view.holds))
    if holders:
        named = ", ".join(holders[:NAMED_MAX]) + (" ..." if len(holders) > NAMED_MAX else "")
        text = (
            f"{name} needs a free device, and {named} still holds a part of it: drain it with "
            f"`muster drain --gpu-id {held[0].gpu.uuid}` and repeat the request: the node applies "
            "it when the jobs have ended"
        )
        raise Problem(409, text, jobs=holders)
