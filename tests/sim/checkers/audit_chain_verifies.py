"""The archive holds the exact bytes of the whole log, trimmed or not, under the same chain."""

from services.audit.chain import chain
from tests.sim.checkers.checker import Checker


class AuditChainVerifies(Checker):
    def finished(self) -> None:
        archive, entries = self.world.archive, self.world.stream.entries
        if archive.entries != entries:
            self.fail(
                f"the archive holds {len(archive.entries)} commits that are not the log's "
                f"{len(entries)}"
            )
        elif archive.links != chain.extend(None, entries):
            self.fail("the archive's chain is not the log's")
