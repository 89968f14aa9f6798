"""What this node's devices shall be told, and what was: part of the agent's pure core.

Each wish is carried out once, one at a time on a device. What lasts is carried out again when the
device may have lost it: its agent is another process, its driver had to be begun anew, it was
reset. A device that is too hot may be told less than that, by a policy, until it is cool. The log
hears only what it does not know. What needs a free device keeps new work off it, and waits; a reset
then goes the way of all resets (`health/devices.py`). Tests: tests/unit/test_agent_controls.py.
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
    """`wishes` is the newest of each control of each device, with what the log knows of it; `todo`
    are those to carry out, `busy` the devices that are being told something; `modes` are those that
    devices are in.

    `hot` is what a device is told while it is too hot, `too_hot` those that are.
    """

    policy: dict[str, tuple[str, int]] = {}
    hot: dict[GpuId, ControlOrder] = {}
    too_hot: dict[GpuId, None] = {}
    wishes: dict[Key, ControlOrder] = {}
    todo: dict[Key, None] = {}
    busy: dict[GpuId, None] = {}
    modes: dict[Key, str] = {}
    unsaid: list[NodeFact] = []


def begin(controls: Controls, gpus: Iterable[Gpu]) -> None:
    """What the policy means for the devices that are there; one that does not say what it takes is
    left alone.
    """
    controls.hot.clear()
    for gpu in gpus:
        control, percent = controls.policy.get(gpu.vendor, controls.policy.get("*", ("", 0)))
        if value := c.part_of(control, percent, gpu) if control else "":
            controls.hot[gpu.uuid] = ControlOrder(gpu.uuid, control, value, 0)


def heated(controls: Controls, uuid: GpuId, is_hot: bool) -> None:
    """A device has become too hot, or is cool again."""
    order = controls.hot.get(uuid)
    if order is None or (uuid in controls.too_hot) == is_hot:
        return
    if is_hot:
        controls.too_hot[uuid] = None
    else:
        del controls.too_hot[uuid]
    controls.todo[uuid, order.control] = None


def wanted(controls: Controls, key: Key) -> ControlOrder:
    """What the device shall be told now: the wish, or less while it is too hot."""
    wish = controls.wishes.get(key, ControlOrder(*key, "", 0))
    hot = controls.hot.get(key[0]) if key[0] in controls.too_hot else None
    if hot is None or hot.control != key[1] or c.stricter(hot.value, wish.value) == wish.value:
        return wish
    return hot


def heard(controls: Controls, orders: Iterable[ControlOrder]) -> None:
    """Those that are newer than what is known."""
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


def replaced(
    controls: Controls, devices: Devices, orders: Iterable[ControlOrder], seq: int
) -> None:
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


def due(
    controls: Controls, devices: Devices, node_id: NodeId, held: Collection[GpuId]
) -> list[ControlOrder]:
    """What is to be carried out now.

    `held` are the devices of whose cards somebody has something.
    """
    found = []
    for key in list(controls.todo):
        order, uuid = wanted(controls, key), key[0]
        if _is_so(controls, order):
            del controls.todo[key]
            _let_go(devices, order)
            if not order.outcome:
                carried_out(controls, devices, node_id, replace(order, outcome=c.DONE))
            continue
        if c.needs_free(order.control):
            verdict = DRAIN_THEN_RESET if order.control == c.RESET else ""
            for each in [uuid] if verdict else _on_its_card(controls, uuid):
                d.hurt(
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


def _is_so(controls: Controls, order: ControlOrder) -> bool:
    """A mode that its card is in already needs no free device, nor one that is a part of it no
    more; nor is one tried again that was not to be had, each time taking it out.
    """
    mode = c.meant(order.control, order.value)
    given_up = order.outcome not in ("", c.DONE)
    there = (
        [controls.modes.get((uuid, order.control)) for uuid in _on_its_card(controls, order.uuid)]
        if mode
        else []
    )
    return bool(mode) and order.uuid not in controls.busy and (given_up or mode in there)


def carried_out(controls: Controls, devices: Devices, node_id: NodeId, order: ControlOrder) -> None:
    """`order` says what became of it."""
    controls.busy.pop(order.uuid, None)
    _let_go(devices, order)
    if c.meant(order.control, order.value) and order.outcome in (
        c.DONE,
        c.FAILED,
    ):  # its card may have been reset for it
        for uuid in _on_its_card(controls, order.uuid):
            again(controls, uuid, modes=False)
    why = "" if order.request else TOO_HOT if order.value else COOL
    _say(controls, node_id, replace(order, detail="; ".join(filter(None, (why, order.detail)))))


def _let_go(devices: Devices, order: ControlOrder) -> None:
    """Its card waits for it no more."""
    for uuid in on_cards_of(devices.troubles, [order.uuid]):
        d.cleared(devices, uuid, reason(order.control))


def _on_its_card(controls: Controls, uuid: GpuId) -> list[GpuId]:
    """The device, and the other parts of its card."""
    return [
        uuid,
        *(
            each
            for each in on_cards_of((known for known, _ in controls.modes), [uuid])
            if each != uuid
        ),
    ]


def is_reset(controls: Controls, devices: Devices, uuid: GpuId) -> None:
    """The other parts of its card are reset with it: they take no work meanwhile."""
    for each in _on_its_card(controls, uuid)[1:]:
        d.hurt(devices, each, d.RESET, Trouble(gpu_life.RESETTING, d.WHILE_RESET))


def was_reset(controls: Controls, devices: Devices, node_id: NodeId, seen: DeviceReset) -> None:
    """Whatever it was reset for, the operator's wish is answered.

    A device that its driver did not even begin with is as it was before.
    """
    for order in seen.controls:
        _say(controls, node_id, order)
    d.cleared(
        devices, seen.uuid, reason(c.RESET)
    )  # whatever came of it: nobody asked for another one
    for each in _on_its_card(controls, seen.uuid)[1:]:
        d.cleared(devices, each, d.RESET)
        if not seen.refused:
            again(controls, each)
    asked = controls.wishes.get((seen.uuid, c.RESET))
    is_open = asked is not None and not asked.outcome
    d.was_reset(devices, seen.uuid, seen.problem, seen.checks, seen.refused, is_open)
    controls.todo.pop((seen.uuid, c.RESET), None)
    if asked is not None and is_open:
        outcome = seen.refused or (c.FAILED if seen.problem else c.DONE)
        _say(controls, node_id, replace(asked, outcome=outcome, detail=seen.problem))


def lasting(controls: Controls, uuid: GpuId) -> tuple[ControlOrder, ...]:
    """What a device is to be told again when it has lost it."""
    keys = dict.fromkeys(
        [*controls.wishes, *((each.uuid, each.control) for each in controls.hot.values())]
    )
    orders = (wanted(controls, key) for key in keys if key[0] == uuid)
    return tuple(order for order in orders if c.lasts(order.control, order.value))


def again(controls: Controls, uuid: GpuId, modes: bool = True) -> None:
    """The device may have lost what it was told, its `modes` too."""
    lost = (
        order
        for order in lasting(controls, uuid)
        if modes or not c.meant(order.control, order.value)
    )
    controls.todo.update(((order.uuid, order.control), None) for order in lost)


def known(controls: Controls) -> Iterator[tuple[str, str, int]]:
    """As the digest has them."""
    return (
        (order.uuid, order.control, order.request)
        for order in controls.wishes.values()
        if order.request or order.in_force
    )


def facts(controls: Controls) -> list[NodeFact]:
    said, controls.unsaid = controls.unsaid, []
    return said


def _say(controls: Controls, node_id: NodeId, order: ControlOrder) -> None:
    """What the log knows already is not said again."""
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
    controls.unsaid.append(
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
