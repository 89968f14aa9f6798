"""The simulated audit: the real chain over the log, into an archive that survives the process and holds the exact bytes."""

from libs.common.log import Entry, Log
from services.audit import chain


class Archive:
    """What the database would hold: links and bytes, in one transaction."""

    def __init__(self) -> None:
        self.links: list[chain.Link] = []
        self.entries: list[Entry] = []


class Auditor:
    """Reads on from the archive's head, for ever."""

    def __init__(self, log: Log, archive: Archive) -> None:
        self.log = log
        self.archive = archive

    async def run(self) -> None:
        head = self.archive.links[-1] if self.archive.links else None
        async for batch in self.log.read(head.seq if head else 0):
            links = chain.extend(head, batch)
            self.archive.links += links
            self.archive.entries += batch
            head = links[-1] if links else head
