"""What operators want devices to be told, as facts (`libs/common/devices/device_controls.py`).

Pure.

A value is held against what the device's node reported of it; what the device does not have at all
its driver says, for it may be there after an upgrade. What needs a free device is refused while
somebody has it, unless nothing new may come there: then it waits for what runs. Held by
tests/unit/test_gateway_control_intents.py.
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
from services.api_gateway.intents import job_intents as intents
from services.api_gateway.problems import Problem

CONTROL_FIELDS: Final = ("value", "user")
NAMED_MAX: Final = 8


def control(
    body: object, name: str, views: Sequence[GpuView], cluster: Cluster
) -> list[GpuControlRequested]:
    """The facts for `PUT .../controls/NAME` of these devices.

    Raises Refused, Problem 404 for a control that there is not, and Problem 409 where it cannot be
    asked for now.
    """
    if name not in device_controls.ROWS:
        raise Problem(
            404, f"there is no control {name[:32]!r}: there are {', '.join(device_controls.ROWS)}"
        )
    values = intents.fields_of(body, CONTROL_FIELDS)
    value, user = values.get("value", ""), intents.user_of(values)
    if not isinstance(value, str) or not (value or device_controls.ROWS[name].once):
        raise Refused(
            f"value: give {device_controls.ROWS[name].takes}, or {device_controls.DEFAULT}, as text"
        )
    for view in views:
        _check_is_there(view, cluster)
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


def _check_is_there(view: GpuView, cluster: Cluster) -> None:
    node = cluster.nodes[view.node_id]
    if not view.present:
        raise Problem(
            409,
            (
                f"GPU {view.gpu.uuid} is lost: its node {view.node_id} did not find it when its "
                "agent began"
            ),
        )
    if not node.takes_controls:
        raise Problem(
            409,
            f"the agent of node {view.node_id} is too old to be told: upgrade it to this version",
        )


def _on_their_cards(views: Sequence[GpuView], cluster: Cluster) -> list[GpuView]:
    """The other parts of their cards."""
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
        wait = (
            f"muster drain --gpu-id {held[0].gpu.uuid}, then ask again: it is done when they "
            "have ended"
        )
        raise Problem(
            409, f"{name} needs the device free, and {named} has a part of it: {wait}", jobs=holders
        )
