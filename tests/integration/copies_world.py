"""A node that fetches from the serving node of `links_world.py`. For the tests of copies."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from libs.common.messages.copy_messages import COPYING, CopyStart, CopyState
from libs.common.model import AttemptRef, JobId, NodeId
from services.node_agent.fabric.choice import Choices
from services.node_agent.links.copies import Copies
from services.node_agent.links.members import Members
from tests.integration.links_world import DIALLER, NOW_NS, ROSTER, Serving, serving_at

WITHIN_S = 20.0


class Fetching:
    """The node `dialler`, whose job j2 of tenant red has the working directory `root`.

    `asked`: the node asked for a newer roster than `roster`.
    """

    def __init__(
        self,
        root: Path,
        serving: Serving,
        answer_s: float,
        copy_s: float,
        choices: Choices | None = None,
    ) -> None:
        self.root, self.serving = root, serving
        self.ids: list[int] = []
        self.roster = ROSTER
        self.asked = threading.Event()
        self.numbers = iter(range(1_000_000))
        self.copies = Copies(
            key=DIALLER,
            members=Members(DIALLER.node_id, lambda: self.roster, self.asked.set, known_s=WITHIN_S),
            wall_ns=lambda: NOW_NS,
            tenant_of=lambda ref: {"j2": "red", "j3": "blue"}.get(ref.job_id, ""),
            root_of=self._root_of,
            answer_s=answer_s,
            copy_s=copy_s,
            choices=choices,
        )

    def _root_of(self, ref: AttemptRef) -> tuple[str, bool, list[int]] | None:
        return (str(self.root), False, self.ids) if ref.job_id in ("j2", "j3") else None

    def request(
        self,
        source: str = "",
        path: str = "",
        job: str = "j2",
        token: bytes = b"",
        address: str = "",
    ) -> CopyStart:
        return CopyStart(
            copy=f"c{next(self.numbers)}",
            tenant="red",
            job_id=JobId(job),
            attempt=1,
            path=path.encode(),
            node_id=NodeId("server"),
            source_job_id=JobId("j1"),
            source_attempt=1,
            source_path=source.encode(),
            address=address or self.serving.links.address,
            token=token or self.serving.token(source),
            offer=self.serving.links.choices.own(),
        )

    def ended(self, start: CopyStart) -> CopyState:
        """Return the end of a copy that was begun."""
        self.until(lambda: self.copies.look(start.copy).state != COPYING)
        return self.copies.look(start.copy)

    def copied(self, source: str = "", path: str = "", job: str = "j2") -> CopyState:
        """Make a copy and return its end."""
        start = self.request(source, path, job)
        begun = self.copies.begin(start)
        return begun if begun.fault else self.ended(start)

    def until(self, is_so: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + WITHIN_S
        while not is_so():
            assert time.monotonic() < deadline_s
            time.sleep(0.01)

    def names(self) -> list[str]:
        """All names in the target's directory."""
        return sorted(str(path.relative_to(self.root)) for path in self.root.rglob("*"))


@contextmanager
def fetching_at(
    folder: Path,
    bytes_per_s: int = 0,
    answer_s: float = 2.0,
    copy_s: float = 60.0,
    dialling: Choices | None = None,
    listening: Choices | None = None,
) -> Iterator[Fetching]:
    """Yield a node that fetches from a node beside it. Without choices both use TCP."""
    (folder / "target").mkdir()
    with serving_at(folder / "source", bytes_per_s, listening) as serving:
        found = Fetching(folder / "target", serving, answer_s, copy_s, dialling)
        try:
            yield found
        finally:
            found.copies.stop()
