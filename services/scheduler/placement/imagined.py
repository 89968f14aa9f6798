"""A node as it would be after some attempts on it have ended.

Pure: the node itself stays as it is.
"""

from copy import copy

from msgspec.structs import replace

from libs.common.model import job_of
from libs.common.state.cluster import Cluster, GpuView
from services.scheduler.placement.capacity import read_device, read_host, reserved_on
from services.scheduler.placement.place import Place


class Imagined:
    """A copy of a node state without some attempts.

    `there` is the real node state, `place` the copy without the attempts (`model.attempt_key`) in
    `ended`. Each call of `end` or `spare` reads only what that attempt holds.
    """

    def __init__(self, cluster: Cluster, there: Place) -> None:
        self.cluster = cluster
        self.there = there
        self.ended: set[str] = set()
        self.closed = reserved_on(there.node)
        self.place = copy(there)
        self.place.parts = dict(there.parts)
        self.place.node = replace(
            there.node, members=dict(there.node.members), held=dict(there.node.held)
        )

    def end(self, key: str) -> Place:
        """End this attempt on the copy."""
        self.ended.add(key)
        self.place.node.members.pop(job_of(key), None)
        self.place.node.held.pop(key, None)
        return self._read_devices_of(key)

    def spare(self, key: str) -> Place:
        """Let this attempt go on after all."""
        self.ended.remove(key)
        self.place.node.members[job_of(key)] = self.there.node.members[job_of(key)]
        if key in self.there.node.held:
            self.place.node.held[key] = self.there.node.held[key]
        return self._read_devices_of(key)

    def _read_devices_of(self, key: str) -> Place:
        place = self.place
        for index, view in enumerate(place.views):
            if key in view.holds and view.gpu.uuid not in self.closed:
                place.parts.pop(index, None)
                if self.ended.issuperset(view.holds):
                    place.whole |= 1 << index
                else:
                    place.whole &= ~(1 << index)
                    read_device(self.cluster, place, index, self._without_ended(view))
        place.widen()
        if key in self.there.node.held:
            read_host(self.cluster, place)
        return place

    def _without_ended(self, view: GpuView) -> GpuView:
        holds = {key: share for key, share in view.holds.items() if key not in self.ended}
        return replace(
            view,
            holds=holds,
            parts={key: part for key, part in view.parts.items() if key not in self.ended},
        )
