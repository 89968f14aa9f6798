"""Bugs planted on purpose, in the simulation only: each breaks one rule, and some checker must find
it.

Every function changes one thing through pytest's `monkeypatch`, which undoes it.
`test_planted_bugs.py` states the number of seeds within which the simulation must find it.
"""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from libs.common import facts as f
from libs.common import fold, reasons
from libs.common.change import IGNORED
from libs.common.messages import Desired, Orders
from libs.common.process import serving_tasks
from libs.common.state import ledger
from libs.common.state.cluster import Cluster, Job, MemberView, tenant_of
from libs.common.state.reservation import Reservation
from services.node_agent.core import observations as o
from services.node_agent.service import Agent
from services.scheduler.decide import attempts, elastic
from services.scheduler.placement import capacity, choose, gang, place, ranking, sharing_domains
from services.scheduler.policies import POLICIES, OrderKey
from services.scheduler.preemption.preemptible import Need, Preemptible
from services.scheduler.queueing import backfill
from services.scheduler.reservations import reservations
from services.scheduler.state import buckets, state
from services.scheduler.state.state import State


def tasks_are_cancelled_once(patch: pytest.MonkeyPatch) -> None:
    """When a serving task ends, the others are cancelled only once and awaited without a time
    limit.
    """

    async def cancelled_once(tasks: Sequence[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    patch.setattr(serving_tasks, "end_all", cancelled_once)


def tenants_share_devices_without_permission(patch: pytest.MonkeyPatch) -> None:
    """A free part of a device goes to any tenant, although another tenant has the rest."""
    patch.setattr(capacity, "sharing_domain_on", lambda cluster, view: sharing_domains.SHARING)
    patch.setattr(backfill, "sharing_domain_of", lambda cluster, tenant: sharing_domains.SHARING)


def a_mig_instance_begins_anywhere(patch: pytest.MonkeyPatch) -> None:
    """A MIG instance begins at the card's last slice, where no card allows an instance to begin."""
    patch.setattr(place, "_slices", lambda place, index, part, profile: 1 << 7)


def cpus_and_memory_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    """A node serves a request whatever CPUs and memory it has left."""
    for asker in (ranking, choose):
        patch.setattr(asker, "host_serves", lambda place, request: True)


def reserved_devices_are_free_for_all(patch: pytest.MonkeyPatch) -> None:
    """A device that is reserved for a job is free for every other job."""
    mirror = capacity.mirror

    def careless(cluster: Cluster, place: place.Place) -> None:
        node, place.node = place.node, msgspec.structs.replace(place.node, reserved={})
        mirror(cluster, place)
        place.node = node

    patch.setattr(capacity, "mirror", careless)


def a_gang_gets_more_nodes_than_its_maximum(patch: pytest.MonkeyPatch) -> None:
    """A gang may get one node more than its maximum."""
    patch.setattr(
        elastic, "widest", lambda fewest, most, choose: gang.widest(fewest, most + 1, choose)
    )


def a_gang_grows_although_other_jobs_wait(patch: pytest.MonkeyPatch) -> None:
    """A gang is started again with more nodes although other jobs wait for them."""
    patch.setattr(elastic, "_wanted", lambda state, job: 0)


def a_preemption_counts_as_a_failure(patch: pytest.MonkeyPatch) -> None:
    """The end of a preempted attempt counts as a failure: it uses up a retry or ends the job."""
    patch.setattr(attempts, "reasons", SimpleNamespace(**vars(reasons) | {"GOES_ON": ()}))


def a_time_slice_ends_at_once(patch: pytest.MonkeyPatch) -> None:
    """A job with time slices yields as soon as a job like it waits."""
    after_s = Preemptible._yields_after_s

    def hasty(self: Preemptible, job: Job, need: Need) -> int | None:
        return job.spec.min_run_s if after_s(self, job, need) is not None else None

    patch.setattr(Preemptible, "_yields_after_s", hasty)


def a_job_keeps_its_place_after_its_time_slice(patch: pytest.MonkeyPatch) -> None:
    """A job that yielded after its slice keeps its place in the queue."""
    key_of = State.key_of

    def selfish(self: State, job: Job) -> OrderKey:
        kept = msgspec.structs.replace(job.preemption, sliced_ns=0)
        return key_of(self, msgspec.structs.replace(job, preemption=kept))

    patch.setattr(State, "key_of", selfish)


def fifo_runs_the_last_job_first(patch: pytest.MonkeyPatch) -> None:
    """A queue of policy fifo runs the last job first."""
    patch.setitem(
        POLICIES, "fifo", POLICIES["fifo"]._replace(key=lambda job, queue, now_ns: (0, 0, -job.seq))
    )


def a_backfilled_job_delays_the_reservation(patch: pytest.MonkeyPatch) -> None:
    """A backfilled job may end after the reservation of the job in front begins."""
    patch.setattr(backfill, "ends_in_time", lambda job, reservation, now_ns: True)


def a_reservation_is_kept_only_once_it_has_begun(patch: pytest.MonkeyPatch) -> None:
    """A node accepts any job until its reservation begins, however long the job runs."""
    in_the_way = reservations.in_the_way

    def hasty(state: State, job: Job) -> list[Reservation]:
        return [each for each in in_the_way(state, job) if each.start_ns <= state.wall_ns]

    patch.setattr(reservations, "in_the_way", hasty)


def dependencies_are_ignored(patch: pytest.MonkeyPatch) -> None:
    """A job is queued although the jobs that it depends on have not ended."""

    def heedless(job: Job, wall_ns: int) -> str:
        waits = job.has_room and not (job.preemption.reserved or job.refusals.waits(wall_ns))
        return buckets.WITHDRAW if job.cancel is not None else buckets.WAIT if waits else ""

    patch.setattr(buckets, "_waiting_bucket", heedless)


def the_array_limit_is_ignored(patch: pytest.MonkeyPatch) -> None:
    """The limit on live elements of an array is not enforced."""
    patch.setattr(Job, "has_room", property(lambda job: True))


def allocation_extensions_are_ignored(patch: pytest.MonkeyPatch) -> None:
    """Folds ignore the extension of an allocation."""
    patch.setitem(fold._FOLDS, f.AllocationExtended, lambda cluster, fact, stamp: IGNORED)


def a_take_over_forgets_timers_of_held_devices(patch: pytest.MonkeyPatch) -> None:
    """A new scheduler sets no timers for placements from before its term."""
    begin = state.State.begin

    def forgetful(self: state.State, epoch: int, now_ns: int) -> None:
        begin(self, epoch, now_ns)
        self.turns.entries.clear()

    patch.setattr(state.State, "begin", forgetful)


def an_order_names_no_attempt(patch: pytest.MonkeyPatch) -> None:
    """Orders name only the job, and every node takes them for attempt 1."""
    tell = Agent.tell

    def forgetful(self: Agent, seen: o.Observation) -> None:
        match seen:
            case o.OrdersReceived(orders):
                seen = o.OrdersReceived(
                    Orders(orders.epoch, tuple(_first(order) for order in orders.orders))
                )
            case o.DesiredReceived(request):
                starts, stops = (
                    tuple(map(_first, request.starts)),
                    tuple(map(_first, request.stops)),
                )
                seen = o.DesiredReceived(
                    Desired(
                        epoch=request.epoch,
                        incarnation=request.incarnation,
                        seq=request.seq,
                        starts=starts,
                        stops=stops,
                    )
                )
            case _:
                pass
        tell(self, seen)

    patch.setattr(Agent, "tell", forgetful)


def _first(order: Any) -> Any:
    return msgspec.structs.replace(order, attempt=1)


def a_release_frees_another_attempt(patch: pytest.MonkeyPatch) -> None:
    """A release removes the oldest hold of the device, even of another attempt."""

    def careless(cluster: Cluster, job: Job, member: MemberView) -> None:
        tenant = tenant_of(cluster, job.tenant)
        for request in member.gpus:
            holds = cluster.gpus[request.uuid].holds
            if holds:
                tenant.held_share -= holds.pop(next(iter(holds)))

    patch.setattr(ledger, "release", careless)
