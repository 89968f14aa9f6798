"""A node as it would be if some of what is there had ended.

Pure: the node itself stays as it is.
"""

from copy import copy

from msgspec.structs import replace

from libs.common.model import job_of
from libs.common.state.cluster import Cluster, GpuView
from services.scheduler.placement.capacity import look_at_device, look_at_host, reserved_on
from services.scheduler.placement.place import Place


class Imagined:
    """`there` is the node, `place` how it would be without the attempts (`model.attempt_key`) that
    have `ended`.

    With each that ends or is spared only what it holds is looked at again.
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
        self.ended.add(key)
        self.place.node.members.pop(job_of(key), None)
        self.place.node.held.pop(key, None)
        return self._look_at(key)

    def spare(self, key: str) -> Place:
        """It goes on after all."""
        self.ended.remove(key)
        self.place.node.members[job_of(key)] = self.there.node.members[job_of(key)]
        if key in self.there.node.held:
            self.place.node.held[key] = self.there.node.held[key]
        return self._look_at(key)

    def _look_at(self, key: str) -> Place:
        place = self.place
        for index, view in enumerate(place.views):
            if key in view.holds and view.gpu.uuid not in self.closed:
                place.parts.pop(index, None)
                if self.ended.issuperset(view.holds):
                    place.whole |= 1 << index
                else:
                    place.whole &= ~(1 << index)
                    look_at_device(self.cluster, place, index, self._left(view))
        place.widen()
        if key in self.there.node.held:
            look_at_host(self.cluster, place)
        return place

    def _left(self, view: GpuView) -> GpuView:
        holds = {key: share for key, share in view.holds.items() if key not in self.ended}
        return replace(
            view,
            holds=holds,
            parts={key: part for key, part in view.parts.items() if key not in self.ended},
        )
