"""What this node's devices shall be told, and what was: part of the agent's pure core.

Each wish is carried out once, one at a time on a device. What lasts is carried out again when the device may have lost it: its agent is
another process, its driver had to be begun anew, it was reset. The log hears only what it does not know. One that needs a free device keeps
new work off it, and waits; a reset then goes the way of all resets (`health/devices.py`). Tests: tests/unit/test_agent_controls.py.
"""

from collections.abc import Collection, Iterable, Iterator

import msgspec
from msgspec.structs import replace

from libs.common import device_controls as c
from libs.common import facts as f
from libs.common import gpu_life
from libs.common.error_catalogue import DRAIN_THEN_RESET
from libs.common.facts import NodeFact
from libs.common.messages import ControlOrder
from libs.common.model import GpuId, NodeId
from services.node_agent.health import devices as d
from services.node_agent.health.devices import Devices, Trouble
from services.node_agent.observations import DeviceReset

Key = tuple[GpuId, str]


class Controls(msgspec.Struct):
    """`wishes` is the newest of each control of each device, with what the log knows of it; `todo` are those to carry out, `busy` the
    devices that are being told something.
    """

    wishes: dict[Key, ControlOrder] = {}
    todo: dict[Key, None] = {}
    busy: dict[GpuId, None] = {}
    unsaid: list[NodeFact] = []


def heard(controls: Controls, orders: Iterable[ControlOrder]) -> None:
    """Those that are newer than what is known."""
    for order in orders:
        key = (order.uuid, order.control)
        known = controls.wishes.get(key)
        if known is not None and order.request <= known.request:
            continue
        controls.wishes[key] = order
        if not order.outcome or c.lasts(order.control, order.value):
            controls.todo[key] = None


def replaced(controls: Controls, devices: Devices, orders: Iterable[ControlOrder], seq: int) -> None:
    """All that is wished as of this sequence: what is older and not there is wished no more."""
    wished = {(order.uuid, order.control): order for order in orders}
    for key, known in list(controls.wishes.items()):
        if key not in wished and known.request <= seq:
            del controls.wishes[key]
            controls.todo.pop(key, None)
            d.cleared(devices, key[0], reason(known.control))
    heard(controls, wished.values())


def reason(control: str) -> str:
    """Why a device takes no work while it waits for this."""
    return f"{control}_asked"


def due(controls: Controls, devices: Devices, held: Collection[GpuId]) -> list[ControlOrder]:
    """What is to be carried out now. `held` are the devices that somebody has."""
    found = []
    for key in list(controls.todo):
        order, uuid = controls.wishes[key], key[0]
        if c.needs_free(order.control):
            verdict = DRAIN_THEN_RESET if order.control == c.RESET else ""
            d.hurt(devices, uuid, reason(order.control), Trouble(gpu_life.OFFLINE, "it was asked for", verdict, d.OPERATOR))
        if order.control == c.RESET:
            del controls.todo[key]
            continue
        waits = uuid in controls.busy or uuid in devices.resetting or (uuid in held and c.needs_free(order.control))
        if not waits:
            del controls.todo[key]
            controls.busy[uuid] = None
            found.append(order)
    return found


def carried_out(controls: Controls, devices: Devices, node_id: NodeId, order: ControlOrder) -> None:
    """`order` says what became of it."""
    controls.busy.pop(order.uuid, None)
    d.cleared(devices, order.uuid, reason(order.control))
    _say(controls, node_id, order)


def was_reset(controls: Controls, devices: Devices, node_id: NodeId, seen: DeviceReset) -> None:
    """Whatever it was reset for, the operator's wish is answered. A device that its driver did not even begin with is as it was before."""
    for order in seen.controls:
        _say(controls, node_id, order)
    if seen.refused:
        d.cleared(devices, seen.uuid, reason(c.RESET))
    d.was_reset(devices, seen.uuid, seen.problem, seen.checks, bool(seen.refused))
    controls.todo.pop((seen.uuid, c.RESET), None)
    asked = controls.wishes.get((seen.uuid, c.RESET))
    if asked is not None and not asked.outcome:
        outcome = seen.refused or (c.FAILED if seen.problem else c.DONE)
        _say(controls, node_id, replace(asked, outcome=outcome, detail=seen.problem))


def lasting(controls: Controls, uuid: GpuId) -> tuple[ControlOrder, ...]:
    """What a device is to be told again when it has lost it."""
    return tuple(order for key, order in controls.wishes.items() if key[0] == uuid and c.lasts(order.control, order.value))


def again(controls: Controls, uuid: GpuId) -> None:
    """The device may have lost what it was told."""
    controls.todo.update(((order.uuid, order.control), None) for order in lasting(controls, uuid))


def known(controls: Controls) -> Iterator[tuple[str, str, int]]:
    """As the digest has them."""
    return ((order.uuid, order.control, order.request) for order in controls.wishes.values())


def facts(controls: Controls) -> list[NodeFact]:
    said, controls.unsaid = controls.unsaid, []
    return said


def _say(controls: Controls, node_id: NodeId, order: ControlOrder) -> None:
    """What the log knows already is not said again."""
    key = (order.uuid, order.control)
    before = controls.wishes.get(key)
    if before == order:
        return
    if before is not None and before.request == order.request:
        controls.wishes[key] = order
    uuid, control, value, request = order.uuid, order.control, order.value, order.request
    said = f.GpuControlled(
        node_id=node_id, uuid=uuid, control=control, value=value, request=request, outcome=order.outcome, detail=order.detail
    )  # fmt: skip
    controls.unsaid.append(said)
