"""The sender of one gateway: while it holds the lease, it follows the log and keeps one task for
each destination.

Facts are read and decoded once, for all destinations. Tests:
tests/integration/test_notify_delivery.py.
"""

import asyncio
import logging
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from libs.common import reading
from libs.common.errors import Fenced, Unavailable
from libs.common.facts import Commit, kind_of
from libs.common.process.cancellation import end_all
from libs.common.process.serving_tasks import serve_together
from libs.common.state.notifications import Destination
from libs.common.transport.log import Entry
from libs.common.transport.revisions import MemoryRevisions, Revisions
from services.api_gateway.notify import rules
from services.api_gateway.notify.delivery import KEEP_S, Delivery, Waiting, sealed_of
from services.api_gateway.notify.lease import SendingLease
from services.api_gateway.notify.messages import Notice, notice_of, summary_of
from services.api_gateway.notify.origins import Origins
from services.api_gateway.notify.sending import Sender
from services.api_gateway.times import rfc3339
from services.api_gateway.views.waiting import LogFollower

if TYPE_CHECKING:
    from services.api_gateway.gateway import Gateway

LOOK_S: Final = 1.0
# How often a gateway that does not send looks whether it should.
BEGIN_S: Final = 0.2

logger = logging.getLogger(__name__)


class Notifier:
    """The sender of one gateway. `head` is the last commit that was offered to all deliveries."""

    def __init__(self, gateway: "Gateway") -> None:
        self.gateway = gateway
        self.use(MemoryRevisions())
        self.sender = Sender(gateway.settings)
        self.origins = Origins(gateway.entries, gateway.bus)
        self.head = 0
        # The time of the last test message of each destination.
        self.tests: dict[str, int] = {}
        self.deliveries: dict[str, Delivery] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._by_kind: dict[str, list[Delivery]] = {}

    def use(self, store: Revisions) -> None:
        """Keep positions and the lease in this store; call it before `run`."""
        self.store = store
        self.lease = SendingLease(store, self.gateway.clock, self.gateway.settings.instance)

    async def run(self) -> None:
        """Take part in the lease, and send while this gateway holds it, for ever."""
        try:
            await serve_together(
                lease=self.lease.run(lambda: bool(self.gateway.cluster.notifications)),
                sending=self._send_for_ever(),
            )
        finally:
            await self.lease.release()
            self.sender.close()

    async def send(self, destination: Destination, notice: Notice) -> None:
        """Send one notice once. Raises Refused, Unavailable, Corrupt."""
        await self.sender.send(
            tenant=destination.tenant,
            name=destination.name,
            form=destination.form,
            sealed=await sealed_of(self.gateway.vault, destination),
            notice=notice,
            at_s=self.gateway.clock.wall_ns() // 1_000_000_000,
            all_mail=bool(destination.tenants),
        )

    async def chosen(self, destination: Destination, entry: Entry) -> list[Waiting]:
        """Return the messages of a commit for a destination. Raises Unavailable.

        A fact about a job of an unknown tenant has no message, and is counted in its place.
        """
        commit = reading.read_alone(entry.subject, entry.data)
        self.origins.note(commit)
        found = []
        for position, fact in enumerate(commit.facts):
            if not kind_of(fact).startswith(destination.kinds):
                continue
            job_id = rules.forgotten(self.gateway.cluster, fact)
            origin = await self._origin(job_id, entry.seq, commit.at_ns) if job_id else None
            subject = rules.about(self.gateway.cluster, fact, entry.seq, origin)
            if rules.wants(destination, fact, subject):
                found.append(self._waiting(destination, entry.seq, commit, position, subject))
            elif job_id and not subject.tenant and rules.ALL_TENANTS not in destination.tenants:
                found.append(Waiting(entry.seq, position, commit.at_ns, notice=None))
        return found

    async def _origin(self, job_id: str, seq: int, at_ns: int) -> rules.Origin | None:
        """Return the origin of a job that the state has forgotten; None if it is not known.

        Raises Unavailable while the archive does not answer or is behind commit `seq`, until the
        message would be given up.
        """
        try:
            return await self.origins.of(job_id, seq)
        except Unavailable:
            if self.gateway.clock.wall_ns() - at_ns > KEEP_S * 1_000_000_000:
                return None
            raise

    def _waiting(
        self,
        destination: Destination,
        seq: int,
        commit: Commit,
        position: int,
        subject: rules.About,
    ) -> Waiting:
        fact = rules.shown_to(destination, self.gateway.cluster, commit.facts[position])
        notice = notice_of(
            fact,
            subject,
            id=f"{seq}-{position}",
            time=rfc3339(commit.at_ns) or "",
            cluster=self.gateway.settings.cluster_id,
            summary=summary_of(fact),
        )
        return Waiting(seq, position, commit.at_ns, notice)

    async def _send_for_ever(self) -> None:
        while True:
            if self.lease.holds():
                await self._lead()
            await asyncio.sleep(BEGIN_S)

    async def _lead(self) -> None:
        """Send until the lease is lost."""
        taken, follower = self.lease.taken, LogFollower("")
        self.head = self.gateway.cluster.seq
        try:
            while self.lease.holds() and self.lease.taken == taken:
                self._reconcile()
                await self._feed()
                if self.gateway.cluster.seq <= self.head:
                    await self.gateway.waiting.commits(follower, LOOK_S)
        finally:
            await end_all(list(self._tasks.values()))
            self._tasks.clear()
            self.deliveries.clear()
            self._by_kind.clear()

    async def _feed(self) -> None:
        """Offer the facts up to now to the deliveries that want them."""
        upto = self.gateway.cluster.seq
        if not self.deliveries:
            self.head = upto
            return
        try:
            async with aclosing(self.gateway.entries.scan(self.head, upto)) as slices:
                async for piece in slices:
                    for entry in piece:
                        self._offer(entry)
        except Unavailable as error:
            logger.warning("notifications wait at commit %d: %s", self.head, error)
            await asyncio.sleep(LOOK_S)

    def _offer(self, entry: Entry) -> None:
        """Offer one commit to all deliveries, and move the head, without a pause between."""
        commit = reading.read_alone(entry.subject, entry.data)
        for position, fact in enumerate(commit.facts):
            wanting = self._of_kind(kind_of(fact))
            if not wanting:
                continue
            subject = rules.about(self.gateway.cluster, fact, entry.seq)
            for delivery in wanting:
                destination = delivery.destination
                if rules.wants(destination, fact, subject):
                    delivery.offer(self._waiting(destination, entry.seq, commit, position, subject))
        self.head = entry.seq

    def _of_kind(self, kind: str) -> list[Delivery]:
        found = self._by_kind.get(kind)
        if found is None:
            found = self._by_kind[kind] = [
                each for each in self.deliveries.values() if kind.startswith(each.destination.kinds)
            ]
        return found

    def _reconcile(self) -> None:
        """Begin and end tasks, so that each destination of the state has one of its version."""
        wanted = self.gateway.cluster.notifications
        for key, task in list(self._tasks.items()):
            if task.done():
                self._ended(key, task)
            known = wanted.get(key)
            if known is None or known is not self.deliveries[key].destination:
                task.cancel()
                del self._tasks[key], self.deliveries[key]
                self._by_kind.clear()
        for key, destination in wanted.items():
            if key not in self._tasks:
                delivery = self.deliveries[key] = Delivery(self, destination)
                self._tasks[key] = asyncio.create_task(delivery.run(), name=f"notify-{key}")
                self._by_kind.clear()

    def _ended(self, key: str, task: asyncio.Task[None]) -> None:
        """Begin a delivery anew at its stored position.

        It has ended because another gateway wrote its position, or by a fault of ours, which must
        not end this gateway.
        """
        error = None if task.cancelled() else task.exception()
        faulty = error is not None and not isinstance(error, Fenced)
        logger.log(
            logging.ERROR if faulty else logging.WARNING,
            "the delivery of %s begins again: %r",
            key,
            error or "it was cancelled",
            exc_info=error if faulty else None,
        )
        delivery = self.deliveries[key] = Delivery(self, self.deliveries[key].destination)
        self._tasks[key] = asyncio.create_task(delivery.run(), name=f"notify-{key}")
        self._by_kind.clear()
