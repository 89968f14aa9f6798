"""The free devices of every node, and the rankings over the nodes that make a decision a look-up.

Pure. Derived from the cluster's ledger: `refresh` reads one node again after a fact touched it, and
every ranking examines that node at its next use. Only usable nodes and healthy, present devices
count. Nodes are in the order of their first registration, which is the same for every reader of the
log.
"""

from collections.abc import Collection, Iterable
from typing import Final

from libs.common.devices import mig
from libs.common.devices.means import takes_only
from libs.common.model import GPUS_PER_NODE_MAX, WHOLE_GPU, GpuId, JobId, Member, NodeId
from libs.common.state import arrivals
from libs.common.state.cluster import Cluster, GpuView, Job, MemberView, Node, is_leaving, node_gpus
from libs.common.state.plugins import SCORE, Plugins
from libs.common.state.reservation import Reservation
from services.scheduler.placement.changes import UNSEEN, Changes
from services.scheduler.placement.fill import Fills, WorkloadMix
from services.scheduler.placement.gang import Neighbours
from services.scheduler.placement.hardware import Hardware, key_of
from services.scheduler.placement.place import UNKNOWN, Build, Part, Place
from services.scheduler.placement.ranking import Ranking
from services.scheduler.placement.resource_request import ResourceRequest
from services.scheduler.placement.sharing_domains import sharing_domain_on
from services.scheduler.placement.strategies import DEFAULT, PLUGGED, ROUND_ROBIN, STRATEGIES, Score

# Number of rankings that are kept; the oldest is dropped first.
RANKINGS_MAX: Final = 256
REQUESTS_MAX: Final = 16_384
SERVING_MAX: Final = 131_072
# Number of nodes that idle time examines at once: a few milliseconds.
CATCH_UP_MAX: Final = 1_024


class Serving:
    """The nodes, as bits, that could serve a request with no job running.

    `alone` could serve one member of it. `together` are those among them of which enough may form a
    gang. `seen` is the examined position of `Capacity.builds`.
    """

    def __init__(self) -> None:
        self.alone = 0
        self.together = 0
        self.seen = UNSEEN


class Capacity:
    """The placement view of the cluster.

    `nodes` and `index` map bits to nodes. `places` are the node states of usable nodes. `sizes` are
    their numbers of devices. `version` grows with every change that could let a waiting job start.
    """

    def __init__(self, strategy: str = DEFAULT) -> None:
        self.strategy: Final = strategy
        self.nodes: Final[list[NodeId]] = []
        self.index: Final[dict[NodeId, int]] = {}
        self.places: Final[list[Place | None]] = []
        self.sizes: Final[dict[NodeId, int]] = {}
        self.near: Final = Neighbours({}, {}, {}, {})
        self.version = 0
        self.changes: Final = Changes(self.nodes)
        # Nodes that were added, removed or rebuilt, and the results of `choose.serving`.
        self.builds: Final = Changes(self.nodes)
        self.serving: Final[dict[ResourceRequest, Serving]] = {}
        # The nodes of each build, as bits, and the memory of the largest card that was ever built.
        self.by_build: Final[dict[Build, int]] = {}
        self.card_bytes = 0
        # The existing nodes of each reservation, as bits (`reservations.py`); cleared when a node
        # is added.
        self.sets: Final[dict[Reservation, int]] = {}
        self.placed_last = -1
        # Nodes that accept only some tenants, and the nodes that are closed to each tenant, as
        # bits.
        self.exclusive: Final[dict[int, frozenset[str]]] = {}
        self._closed: Final[dict[str, int]] = {}
        # Strategies from plug-ins.
        self.plugged: dict[str, Score] = {}
        self._plugins: Plugins | None = None
        self._hardware: Final[dict[object, Hardware]] = {}
        # Rankings by ranked request (`ResourceRequest.ranked`), and by each request that used one.
        self._rankings: Final[dict[tuple[ResourceRequest, str], Ranking]] = {}
        self._used: Final[dict[tuple[ResourceRequest, str], Ranking]] = {}
        self._mix = WorkloadMix()
        self._learnt: dict[str, int] = {}
        self._known = self._learnt
        self._built_of: tuple[dict[str, int], int] = ({}, 0)
        self._mix_is_old = False
        self._caught_up = 0

    def refresh(self, cluster: Cluster, node_id: NodeId) -> None:
        """Read one node again.

        Nodes come here in the order of their first registration, as the cluster holds them.
        """
        if node_id not in self.index:
            self.index[node_id] = len(self.nodes)
            self.nodes.append(node_id)
            self.places.append(None)
            self.sets.clear()
        index, node = self.index[node_id], cluster.nodes[node_id]
        self.version += 1
        self._note_tenants(index, takes_only(node.isolation))
        if not node.usable or is_leaving(cluster, node_id) or not node.takes_work:
            self._remove(index)
            return
        views = _placeable(cluster, node)
        place = self.places[index]
        if place is None or not _is_built_as(place, views, node):
            self._remove(index)
            place = self._build(index, node, views, cluster.jobs)
        mirror(cluster, place)
        self.changes.note([index])

    def _note_tenants(self, index: int, tenants: frozenset[str] | None) -> None:
        if self.exclusive.get(index) == tenants:
            return
        self._closed.clear()
        if tenants is None:
            del self.exclusive[index]
        else:
            self.exclusive[index] = tenants

    def closed_to(self, tenant: str) -> int:
        """Return the nodes that accept no jobs of this tenant, as bits."""
        if tenant not in self._closed:
            if len(self._closed) >= REQUESTS_MAX:
                del self._closed[next(iter(self._closed))]  # the oldest
            self._closed[tenant] = sum(
                [1 << index for index, tenants in self.exclusive.items() if tenant not in tenants]
            )
        return self._closed[tenant]

    def follow(
        self, members: Iterable[Member | MemberView], request: ResourceRequest, sharing_domain: str
    ) -> None:
        """Apply an own placement to its nodes, without reading them again."""
        changed = []
        for member in members:
            index = self.index[member.node_id]
            place = self.places[index]
            assert place is not None, "a placement goes to usable nodes"
            place.give(member.gpus, request, sharing_domain)
            changed.append(index)
        self.changes.note(changed)

    @property
    def everywhere(self) -> int:
        """The bits of all nodes."""
        return (1 << len(self.nodes)) - 1

    def bits_of(self, node_ids: Iterable[NodeId]) -> int:
        """Return these nodes as bits, without those that are not known."""
        return sum(1 << self.index[node_id] for node_id in node_ids if node_id in self.index)

    def touch(self, node_ids: Collection[NodeId]) -> None:
        """Note that jobs on these nodes changed, although what is free did not."""
        self.version += 1
        self.changes.note([self.index[node_id] for node_id in node_ids])

    def learn(self, cluster: Cluster) -> None:
        """Take over the learnt workload mix, the node of the last placement, and the plug-ins in
        force.
        """
        if cluster.arrivals.learnt is not self._learnt:
            self._learnt, self._mix_is_old = cluster.arrivals.learnt, True
        self.placed_last = self.index.get(cluster.placed_last, -1)
        if cluster.plugins is not self._plugins:
            self._plug(cluster.plugins)

    def reopen(self, cluster: Cluster) -> None:
        """Read every node with a shared device again, because an administrator changed who shares
        devices.
        """
        for place in self.places:
            if place is not None and place.parts:
                self.refresh(cluster, place.node_id)

    def ranking(self, request: ResourceRequest, sharing_domain: str) -> Ranking:
        """Return the nodes that serve this request now, best first. The sharing domain matters only
        to parts of devices.
        """
        if self._mix_is_old:
            self._apply_mix()
        found = self._used.get((request, sharing_domain))
        if found is None:
            if len(self._used) >= REQUESTS_MAX:
                del self._used[next(iter(self._used))]  # the oldest
            found = self._used[request, sharing_domain] = self._find(request, sharing_domain)
        found.bring_up(self.places, self.changes)
        return found

    def _find(self, request: ResourceRequest, sharing_domain: str) -> Ranking:
        """Return the ranking that the request shares with others; build it if there is none."""
        ranked = request.ranked
        key = (ranked, "" if request.whole or not request.gpus else sharing_domain)
        found = self._rankings.get(key)
        if found is None:
            if len(self._rankings) >= RANKINGS_MAX:
                del self._rankings[next(iter(self._rankings))]  # the oldest
                self._used.clear()
            found = self._rankings[key] = Ranking(
                request=ranked,
                sharing_domain=key[1],
                score=self._score_of(request),
                mix=self._mix,
                takes_turns=self.strategy_of(request) == ROUND_ROBIN,
            )
        return found

    def _drop_rankings(self) -> None:
        """Drop all rankings after a change of the score: the next request builds its own again."""
        self._rankings.clear()
        self._used.clear()
        self.changes.note_all()

    def catch_up(self) -> None:
        """Examine some changed nodes in idle time, so that the next decision finds its ranking up
        to date.
        """
        if self._caught_up == self.changes.position:
            return
        examined = 0
        for ranking in self._rankings.values():
            examined += ranking.bring_up(self.places, self.changes)
            if examined >= CATCH_UP_MAX:
                return
        self._caught_up = self.changes.position

    def strategy_of(self, request: ResourceRequest) -> str:
        """Return the strategy that the job names, if it exists; otherwise the cluster's."""
        return (
            request.strategy
            if request.strategy in STRATEGIES or request.strategy in self.plugged
            else self.strategy
        )

    def _plug(self, plugins: Plugins) -> None:
        """Apply other plug-ins: drop all rankings, so that they are scored again."""
        self._plugins = plugins
        self.plugged = {
            name: score for name, score in PLUGGED.items() if plugins.in_force(SCORE, name)
        }
        self._drop_rankings()
        self.version += 1

    def _score_of(self, request: ResourceRequest) -> Score:
        name = self.strategy_of(request)
        return STRATEGIES.get(name) or self.plugged.get(name) or STRATEGIES[DEFAULT]

    def _apply_mix(self) -> None:
        """Take over another mix or other GPU models, which change what free parts are worth."""
        self._mix_is_old = False
        models: dict[str, int] = {}
        for place in self.places:
            for view in place.views if place is not None else ():
                models[view.gpu.model] = models.get(view.gpu.model, 0) + WHOLE_GPU
        cpus = sum([place.node.cpus_milli for place in self.places if place is not None])
        if (models, cpus) == self._built_of and self._known is self._learnt:
            return
        self._built_of, self._known = (models, cpus), self._learnt
        mix = arrivals.learnt_of(self._learnt)
        self._mix = WorkloadMix(Fills(mix, models, cpus, self._mix.fills) if mix else None)
        self._drop_rankings()

    def _build(self, index: int, node: Node, views: list[GpuView], jobs: dict[JobId, Job]) -> Place:
        gpus = [view.gpu for view in views]
        single = _is_single(views)
        build = key_of(gpus, node.sockets, single)
        hardware = self._hardware.get(build)
        if hardware is None:
            hardware = self._hardware[build] = Hardware(gpus, node.sockets, single)
        place = self.places[index] = Place(index, node, views=views, hardware=hardware, jobs=jobs)
        self.sizes[node.node_id] = len(views)
        self._built(place, 1 << index)
        return place

    def _remove(self, index: int) -> None:
        place = self.places[index]
        if place is not None:
            self.places[index] = None
            self.changes.note([index])
            del self.sizes[place.node_id]
            self._built(place, 0)

    def _built(self, place: Place, bit: int) -> None:
        """Note that a node was added, rebuilt or removed."""
        self.builds.note([place.index])
        self._mix_is_old = True
        gone = ~(1 << place.index)
        self._note_build(place, bit)
        for sets, name in ((self.near.rack, place.rack), (self.near.spine, place.spine)):
            if name:
                sets[name] = sets.get(name, 0) & gone | bit
        self.near.rack_of[place.index] = place.rack
        for vendor, model in place.hardware.models:
            name = f"{vendor} {model}"
            self.near.model[name] = self.near.model.get(name, 0) & gone | bit

    def _note_build(self, place: Place, bit: int) -> None:
        """Note the build of a node that was added (`bit`) or removed (0)."""
        left = self.by_build.get(place.build, 0) & ~(1 << place.index) | bit
        if left:
            self.by_build[place.build] = left
        else:
            self.by_build.pop(place.build, None)
        for gpu in place.gpus if bit else ():
            self.card_bytes = max(self.card_bytes, gpu.memory_bytes)


def _placeable(cluster: Cluster, node: Node) -> list[GpuView]:
    return [view for view in node_gpus(cluster, node) if view.takes_work][:GPUS_PER_NODE_MAX]


def _is_built_as(place: Place, views: list[GpuView], node: Node) -> bool:
    """Return whether the node's build and incarnation are unchanged."""
    same = len(views) == len(place.views) and all(
        now.gpu is before for now, before in zip(views, place.gpus, strict=True)
    )
    return (
        same
        and place.incarnation == node.incarnation
        and place.rack == node.network_rack
        and place.hardware.single == _is_single(views)
    )


def _is_single(views: list[GpuView]) -> bool:
    """Return whether a device of the node serves only jobs with one GPU there."""
    return any(view.alone for view in views)


def mirror(cluster: Cluster, place: Place) -> None:
    """Read what is free on the node from the ledger."""
    place.whole, place.parts = 0, {}
    closed = reserved_on(place.node)
    for index, view in enumerate(place.views):
        if view.gpu.uuid not in closed:
            read_device(cluster, place, index, view)
    place.widen()
    read_host(cluster, place)


def reserved_on(node: Node) -> Collection[GpuId]:
    """Return the reserved devices of the node, which are free only for the jobs they are reserved
    for.
    """
    return (
        {hold.uuid for member in node.reserved.values() for hold in member.gpus}
        if node.reserved
        else ()
    )


def read_device(cluster: Cluster, place: Place, index: int, view: GpuView) -> None:
    """Read what is free of the device."""
    held = view.held if view.holds else 0
    if not held:
        place.whole |= 1 << index
    elif held < WHOLE_GPU:
        place.parts[index] = _part(cluster, view, WHOLE_GPU - held)


def read_host(cluster: Cluster, place: Place) -> None:
    """Read what is free of the host's CPUs and memory."""
    node = place.node
    cpus_milli = memory_bytes = 0
    for cpus, memory in node.held.values():
        cpus_milli, memory_bytes = cpus_milli + cpus, memory_bytes + memory
    for job_id in node.reserved:
        spec = cluster.jobs[job_id].spec
        cpus_milli, memory_bytes = cpus_milli + spec.cpus_milli, memory_bytes + spec.host_bytes
    place.cpus_free = max(0, node.cpus_milli - cpus_milli) if node.cpus_milli else UNKNOWN
    place.memory_free = max(0, node.memory_bytes - memory_bytes) if node.memory_bytes else UNKNOWN


def _part(cluster: Cluster, view: GpuView, free: int) -> Part:
    slices, single, isolation = 0, False, ""
    for hold in view.parts.values():
        slices, isolation = slices | hold.mig_slices, hold.isolation
        single = single or hold.mig_profile.endswith(mig.SINGLE)
    return Part(
        free,
        sharing_domain=sharing_domain_on(cluster, view),
        isolation=isolation,
        slices=slices,
        single=single,
    )
