"""The settings of devices that operators and the heat policy want, and what became of them: part of
the agent's pure core.

Each order is carried out once, one at a time per device. A lasting setting is repeated when the
device may have lost it: after a restart of the agent, of the driver process, or a reset. While a
device is too hot, a policy may set a lower limit than the operator did. Only changes are recorded.
An order that needs a free device keeps new work off it and waits. A reset goes the way of all
resets (`devices.py`). Tests: tests/unit/test_agent_controls.py.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import Final

import msgspec
from msgspec.structs import replace

from libs.common import facts as f
from libs.common.devices import device_controls as c
from libs.common.devices.error_catalogue import DRAIN_THEN_RESET
from libs.common.devices.partition import on_cards_of
from libs.common.facts import NodeFact
from libs.common.life import gpu_life
from libs.common.messages import ControlOrder
from libs.common.model import Gpu, GpuId, NodeId
from services.node_agent.core import devices as d
from services.node_agent.core.devices import Devices, Trouble
from services.node_agent.core.observations import DeviceReset

TOO_HOT: Final = "it was too hot"
COOL: Final = "it is cool again"

Key = tuple[GpuId, str]


class Controls(msgspec.Struct):
    """The wanted and the known settings.

    `wishes` holds the newest order per device and control, with the outcome that the log knows.
    `todo` are the orders to carry out, `busy` the devices that are being set, `modes` the current
    modes. `hot` is the order that applies to a device while it is too hot, `too_hot` the devices
    that are.
    """

    policy: dict[str, tuple[str, int]] = {}
    hot: dict[GpuId, ControlOrder] = {}
    too_hot: dict[GpuId, None] = {}
    wishes: dict[Key, ControlOrder] = {}
    todo: dict[Key, None] = {}
    busy: dict[GpuId, None] = {}
    modes: dict[Key, str] = {}
    unrecorded: list[NodeFact] = []


def begin(controls: Controls, gpus: Iterable[Gpu]) -> None:
    """Compute the heat policy's orders for these devices.

    A device that does not report its range for the control gets none.
    """
    controls.hot.clear()
    for gpu in gpus:
        control, percent = controls.policy.get(gpu.vendor, controls.policy.get("*", ("", 0)))
        if value := c.part_of(control, percent, gpu) if control else "":
            controls.hot[gpu.uuid] = ControlOrder(gpu.uuid, control, value, 0)


def note_heat(controls: Controls, uuid: GpuId, is_hot: bool) -> None:
    """Note that a device became too hot, or cool again."""
    order = controls.hot.get(uuid)
    if order is None or (uuid in controls.too_hot) == is_hot:
        return
    if is_hot:
        controls.too_hot[uuid] = None
    else:
        del controls.too_hot[uuid]
    controls.todo[uuid, order.control] = None


def current_order(controls: Controls, key: Key) -> ControlOrder:
    """Return the order that applies now: the operator's, or the heat policy's if that is lower."""
    wish = controls.wishes.get(key, ControlOrder(*key, "", 0))
    hot = controls.hot.get(key[0]) if key[0] in controls.too_hot else None
    if hot is None or hot.control != key[1] or c.stricter(hot.value, wish.value) == wish.value:
        return wish
    return hot


def add_orders(controls: Controls, orders: Iterable[ControlOrder]) -> None:
    """Add the orders that are newer than the known ones."""
    for order in orders:
        key = (order.uuid, order.control)
        known = controls.wishes.get(key)
        if known is not None and order.request <= known.request:
            continue
        controls.wishes[key] = order
        if (
            not order.outcome
            or c.lasts(order.control, order.value)
            or order.in_force != order.value
        ):
            controls.todo[key] = None


def replace_orders(
    controls: Controls, devices: Devices, orders: Iterable[ControlOrder], seq: int
) -> None:
    """Replace all orders by those of the desired state as of this sequence.

    Known orders that are older and not among them are dropped.
    """
    wanted = {(order.uuid, order.control): order for order in orders}
    for key, known in list(controls.wishes.items()):
        if key not in wanted and known.request <= seq:
            del controls.wishes[key]
            controls.todo.pop(key, None)
            d.clear_trouble(devices, key[0], reason(known.control))
    add_orders(controls, wanted.values())


def reason(control: str) -> str:
    """Return the reason under which a device takes no work while it waits for this control."""
    return f"{control}_asked"


def take_due(
    controls: Controls, devices: Devices, node_id: NodeId, held: Collection[GpuId]
) -> list[ControlOrder]:
    """Return the orders to carry out now, and note them as begun.

    `held` are the devices of cards that an attempt uses.
    """
    found = []
    for key in list(controls.todo):
        order, uuid = current_order(controls, key), key[0]
        if _is_in_force(controls, order):
            del controls.todo[key]
            _stop_waiting(devices, order)
            if not order.outcome:
                note_outcome(controls, devices, node_id, replace(order, outcome=c.DONE))
            continue
        if c.needs_free(order.control):
            verdict = DRAIN_THEN_RESET if order.control == c.RESET else ""
            for each in [uuid] if verdict else _on_its_card(controls, uuid):
                d.add_trouble(
                    devices,
                    each,
                    reason(order.control),
                    Trouble(gpu_life.OFFLINE, "it was asked for", verdict, d.OPERATOR),
                )
        if order.control == c.RESET:
            del controls.todo[key]
            continue
        waits = bool(on_cards_of([uuid], [*controls.busy, *devices.resetting])) or (
            uuid in held and c.needs_free(order.control)
        )
        if not waits:
            del controls.todo[key]
            controls.busy[uuid] = None
            found.append(order)
    return found


def _is_in_force(controls: Controls, order: ControlOrder) -> bool:
    """Return whether a mode order needs no work: the card is in the mode, or the mode was tried and
    is not to be had.

    Trying it again would take the card out of use each time.
    """
    mode = c.meant(order.control, order.value)
    given_up = order.outcome not in ("", c.DONE)
    there = (
        [controls.modes.get((uuid, order.control)) for uuid in _on_its_card(controls, order.uuid)]
        if mode
        else []
    )
    return bool(mode) and order.uuid not in controls.busy and (given_up or mode in there)


def note_outcome(
    controls: Controls, devices: Devices, node_id: NodeId, order: ControlOrder
) -> None:
    """Note the outcome of an order."""
    controls.busy.pop(order.uuid, None)
    _stop_waiting(devices, order)
    if c.meant(order.control, order.value) and order.outcome in (
        c.DONE,
        c.FAILED,
    ):  # the mode change may have reset the card
        for uuid in _on_its_card(controls, order.uuid):
            repeat_lasting(controls, uuid, modes=False)
    why = "" if order.request else TOO_HOT if order.value else COOL
    _record_outcome(
        controls, node_id, replace(order, detail="; ".join(filter(None, (why, order.detail))))
    )


def _stop_waiting(devices: Devices, order: ControlOrder) -> None:
    """Let the devices of the order's card take work again."""
    for uuid in on_cards_of(devices.troubles, [order.uuid]):
        d.clear_trouble(devices, uuid, reason(order.control))


def _on_its_card(controls: Controls, uuid: GpuId) -> list[GpuId]:
    """Return the device and the other devices of its card."""
    return [
        uuid,
        *(
            each
            for each in on_cards_of((known for known, _ in controls.modes), [uuid])
            if each != uuid
        ),
    ]


def reset_begins(controls: Controls, devices: Devices, uuid: GpuId) -> None:
    """Mark the other devices of the card: they are reset with it and take no work meanwhile."""
    for each in _on_its_card(controls, uuid)[1:]:
        d.add_trouble(devices, each, d.RESET, Trouble(gpu_life.RESETTING, d.WHILE_RESET))


def note_reset(controls: Controls, devices: Devices, node_id: NodeId, seen: DeviceReset) -> None:
    """Note the end of a reset, and answer the operator's order if there is one.

    A device whose driver did not begin the reset is as it was before.
    """
    for order in seen.controls:
        _record_outcome(controls, node_id, order)
    d.clear_trouble(devices, seen.uuid, reason(c.RESET))  # answered, whatever the result
    for each in _on_its_card(controls, seen.uuid)[1:]:
        d.clear_trouble(devices, each, d.RESET)
        if not seen.refused:
            repeat_lasting(controls, each)
    asked = controls.wishes.get((seen.uuid, c.RESET))
    is_open = asked is not None and not asked.outcome
    d.note_reset(
        devices,
        uuid=seen.uuid,
        problem=seen.problem,
        checks=seen.checks,
        refused=seen.refused,
        asked=is_open,
    )
    controls.todo.pop((seen.uuid, c.RESET), None)
    if asked is not None and is_open:
        outcome = seen.refused or (c.FAILED if seen.problem else c.DONE)
        _record_outcome(controls, node_id, replace(asked, outcome=outcome, detail=seen.problem))


def lasting_orders(controls: Controls, uuid: GpuId) -> tuple[ControlOrder, ...]:
    """Return the settings to repeat when the device has lost them."""
    keys = dict.fromkeys(
        [*controls.wishes, *((each.uuid, each.control) for each in controls.hot.values())]
    )
    orders = (current_order(controls, key) for key in keys if key[0] == uuid)
    return tuple(order for order in orders if c.lasts(order.control, order.value))


def repeat_lasting(controls: Controls, uuid: GpuId, modes: bool = True) -> None:
    """Carry out again what the device may have lost; `modes`: its modes too."""
    lost = (
        order
        for order in lasting_orders(controls, uuid)
        if modes or not c.meant(order.control, order.value)
    )
    controls.todo.update(((order.uuid, order.control), None) for order in lost)


def digest_entries(controls: Controls) -> Iterator[tuple[str, str, int]]:
    """Return the entries of the digest that the scheduler compares."""
    return (
        (order.uuid, order.control, order.request)
        for order in controls.wishes.values()
        if order.request or order.in_force
    )


def facts(controls: Controls) -> list[NodeFact]:
    """Return the outcomes that are not recorded yet."""
    recorded, controls.unrecorded = controls.unrecorded, []
    return recorded


def _record_outcome(controls: Controls, node_id: NodeId, order: ControlOrder) -> None:
    """Record an outcome, unless the log knows it."""
    uuid, control, value, request, outcome = (
        order.uuid,
        order.control,
        order.value,
        order.request,
        order.outcome,
    )
    before = controls.wishes.get((uuid, control), ControlOrder(uuid, control, "", 0))
    after = replace(before, in_force=value) if outcome == c.DONE else before
    if request == before.request:
        after = replace(after, outcome=outcome, detail=order.detail)
    if after == before:
        return
    controls.wishes[uuid, control] = after
    controls.unrecorded.append(
        f.GpuControlled(
            node_id=node_id,
            uuid=uuid,
            control=control,
            value=value,
            request=request,
            outcome=outcome,
            detail=order.detail,
        )
    )
