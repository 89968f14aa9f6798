"""A node as it would be without some of what is there. Pure: the node itself stays as it is."""

from collections.abc import Set
from copy import copy

from msgspec.structs import replace

from libs.common.cluster import Cluster, GpuView
from libs.common.model import attempt_key
from services.scheduler.placement.capacity import look_at_device, look_at_host, reserved_on
from services.scheduler.placement.place import Place


def without(cluster: Cluster, place: Place, gone: Set[str]) -> Place:
    """`gone` are attempts (`model.attempt_key`). Only what they hold is looked at again."""
    later, node, closed = copy(place), place.node, reserved_on(place.node)
    later.node = replace(
        node,
        members={job_id: attempt for job_id, attempt in node.members.items() if attempt_key(job_id, attempt) not in gone},
        held={key: held for key, held in node.held.items() if key not in gone},
    )
    later.parts = dict(place.parts)
    for index, view in enumerate(place.views):
        if not gone.isdisjoint(view.holds) and view.gpu.uuid not in closed:
            later.parts.pop(index, None)
            look_at_device(cluster, later, index, _rest(view, gone))
    later.widen()
    look_at_host(cluster, later)
    return later


def _rest(view: GpuView, gone: Set[str]) -> GpuView:
    holds = {key: share for key, share in view.holds.items() if key not in gone}
    return replace(view, holds=holds, parts={key: part for key, part in view.parts.items() if key not in gone})
