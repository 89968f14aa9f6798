"""Planted bugs about the log, like those of `planted.py`: writers, acknowledgement and trimming."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from libs.common import facts as f
from libs.common import fold, subjects
from libs.common.change import Stamp
from libs.common.facts import AnyFact
from libs.common.process.service import Shell
from libs.common.state.cluster import Cluster
from libs.common.transport import log_memory, snapshot
from libs.common.transport.log import AppendUnknown
from libs.common.transport.writer import Writer
from services.api_gateway.gateway import Gateway
from services.api_gateway.views import snapshots
from services.api_gateway.views.history import History
from services.audit.trim import trim
from services.audit.trim.trim import Decision, Policy, Standing
from services.audit.trim.trimmer import Trimmer
from tests.sim.log import SimStream


def log_accepts_any_expected_sequence(patch: pytest.MonkeyPatch) -> None:
    """The log accepts a commit whatever sequence its writer expects."""
    store = SimStream.store

    def unguarded(self: SimStream, subject: str, data: bytes, expected: int) -> int:
        last = self.last_by_subject.get(subject)
        return store(self, subject, data, last.seq if last else 0)

    patch.setattr(SimStream, "store", unguarded)


def log_accepts_any_sequence_and_readers_count_no_commits(patch: pytest.MonkeyPatch) -> None:
    """The guard is off, and no reader counts a writer's commits."""
    log_accepts_any_expected_sequence(patch)
    patch.setattr(fold, "check_place", lambda cluster, seq, subject, commit: None)


def orders_are_sent_before_acknowledgement(patch: pytest.MonkeyPatch) -> None:
    """The scheduler sends orders before the log has acknowledged its decision."""

    def hasty(self: Shell, facts: list[AnyFact]) -> None:
        self.writer.put(facts)
        self.voice.acknowledged(self.state.seq + 1, facts)

    patch.setattr(Shell, "_record", hasty)


def a_counter_is_the_message_id(patch: pytest.MonkeyPatch) -> None:
    """The log drops a message whose number it has seen before."""
    patch.setattr(
        log_memory,
        "message_id",
        lambda subject, expected, data: f"{subject} {f.decode(data).number}",
    )


def an_append_of_unknown_outcome_is_done(patch: pytest.MonkeyPatch) -> None:
    """A writer treats an append of unknown outcome as stored."""

    async def trusting(self: Writer, data: bytes) -> int:
        try:
            return await self.log.append(self.subject, data, self.expected)
        except AppendUnknown:
            return self.expected + 1

    patch.setattr(Writer, "_append", trusting)


def a_writer_disowns_its_earlier_commits(patch: pytest.MonkeyPatch) -> None:
    """A former bug: a restarted service takes its own earlier commits for another process's."""
    begin = Shell.__init__

    def attached_to_nothing(self: Shell, *args: Any, **named: Any) -> None:
        begin(self, *args, **named)
        self.leads, self.writer.attached_seq = True, 0

    patch.setattr(Shell, "__init__", attached_to_nothing)


def a_follower_stores_what_the_log_has_not_acknowledged(patch: pytest.MonkeyPatch) -> None:
    """A gateway's snapshot holds facts that its users have asked for and the log has not
    acknowledged.
    """
    connect, encode = Gateway._connect_recording, snapshots.encode
    under_way: list[tuple[Gateway, asyncio.Future[int], Sequence[AnyFact]]] = []

    def noting(self: Gateway) -> None:
        connect(self)
        put = self.writer.put

        def noted(facts: Sequence[AnyFact], share: str = "") -> asyncio.Future[int]:
            future = put(facts, share)
            under_way.append((self, future, facts))
            return future

        patch.setattr(self.writer, "put", noted)

    def hasty(cluster: Cluster, history: History) -> snapshots.Pair:
        ahead = snapshot.copy(cluster)
        stamp = Stamp(cluster.seq, at_ns=0, epoch=0, writer=subjects.GATEWAY_KIND, writer_id="")
        for gateway, future, facts in under_way:
            if gateway.cluster is cluster and not future.done():
                for fact in facts:
                    fold.apply(ahead, fact, stamp)
        return encode(ahead, history)

    patch.setattr(Gateway, "_connect_recording", noting)
    patch.setattr(snapshots, "encode", hasty)


def the_log_is_trimmed_without_the_archive(patch: pytest.MonkeyPatch) -> None:
    """The trimmer purges entries without looking for them in the archive, and ignores how far
    readers have read.
    """
    decide_trim = trim.decide

    def hasty(policy: Policy, standing: Standing) -> Decision:
        return decide_trim(
            policy,
            msgspec.structs.replace(
                standing, young=standing.last + 1, readers={"unknown": standing.last}
            ),
        )

    patch.setattr(trim, "decide", hasty)
    patch.setattr(trim, "prove", lambda entries, records: None)


def the_log_is_trimmed_without_a_snapshot(patch: pytest.MonkeyPatch) -> None:
    """The trimmer purges entries that no stored snapshot covers."""

    async def forgetful(self: Trimmer, cluster: Cluster) -> None:
        return

    patch.setattr(Trimmer, "_store", forgetful)
