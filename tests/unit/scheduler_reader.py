"""A real scheduler that folds given commits, without a task that runs."""

from libs.common import facts as f
from libs.common.facts import AnyFact, Commit
from libs.common.leadership.leading import give_signs
from libs.common.process.clock import SystemClock
from libs.common.settings.settings import Settings
from libs.common.transport.bus_memory import MemoryBus
from libs.common.transport.log import Entry
from libs.common.transport.log_memory import MemoryLog, MemoryStream
from libs.common.transport.snapshot_store import MemorySnapshots
from services.scheduler.service import Scheduler


class Reader:
    """A scheduler that folds commits."""

    def __init__(self) -> None:
        self.scheduler = Scheduler(
            log=MemoryLog(MemoryStream()),
            bus=MemoryBus(),
            clock=SystemClock(),
            settings=Settings(cluster_id="test", instance="s1", state_hash_every=0),
            signs=lambda leading: give_signs(leading, MemoryBus()),
            store=MemorySnapshots(),
        )

    def read(self, subject: str, *facts: AnyFact) -> None:
        cluster = self.scheduler.acked
        mark = cluster.writers.get(subject)
        commit = Commit(
            version=f.VERSION,
            min_reader=f.VERSION,
            writer=subject,
            number=mark.number + 1 if mark is not None else 1,
            epoch=cluster.epoch,
            at_ns=cluster.seq + 1,
            seen=cluster.seq,
            facts=facts,
        )
        self.scheduler.folded(Entry(cluster.seq + 1, subject, f.encode(commit)), commit)
