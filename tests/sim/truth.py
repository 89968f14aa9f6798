"""Every living simulated process of every job; only the checkers may read it.

Machines (`machine.py`) call `begin` and `end` at that very instant. The checkers examine each
beginning.
"""

from collections.abc import Callable

import msgspec

from libs.common.model import GpuHold


class Running(msgspec.Struct, frozen=True):
    """One member's main process. `gpus` is what JobPlaced gave this member."""

    job_id: str
    attempt: int
    node_id: str
    boot: int
    gpus: tuple[GpuHold, ...]
    began_s: float


class Truth:
    """All processes that live now, by job and by device."""

    def __init__(self) -> None:
        self.by_job: dict[str, list[Running]] = {}
        self.by_gpu: dict[str, list[tuple[Running, int]]] = {}
        self.began: dict[tuple[str, int, str], int] = {}
        self.watchers: list[Callable[[Running], None]] = []

    def begin(self, running: Running) -> None:
        self.by_job.setdefault(running.job_id, []).append(running)
        for hold in running.gpus:
            self.by_gpu.setdefault(hold.uuid, []).append((running, hold.share))
        key = (running.job_id, running.attempt, running.node_id)
        self.began[key] = self.began.get(key, 0) + 1
        for watch in self.watchers:
            watch(running)

    def end(self, running: Running) -> None:
        self.by_job[running.job_id].remove(running)
        for hold in running.gpus:
            self.by_gpu[hold.uuid].remove((running, hold.share))

    def living(self) -> list[Running]:
        return [running for found in self.by_job.values() for running in found]
