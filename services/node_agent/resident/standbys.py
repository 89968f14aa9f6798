"""The standbys of this node's replicas: the command that runs them, what they report, and whether
their bytes are granted.

The runner is a process of the job (`standby_runner.py`). It reads one file of the agent and writes
one of its own, which the agent opens without following links. Tests:
tests/integration/test_standby.py.
"""

import contextlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from libs.common.facts import UNDECODABLE
from libs.common.life import kept_life
from libs.common.messages import KeepOrder, StartOrder
from libs.common.model import standby_port
from libs.common.state.kept import kept_key
from services.node_agent.core import serving
from services.node_agent.core import state as s
from services.node_agent.core.attempt import Attempt
from services.node_agent.core.observations import KeepSeen, Observation, StandbySeen
from services.node_agent.core.standby import MS_MAX
from services.node_agent.directories.job_ownership import OWN

LOOPBACK: Final = "127.0.0.1"
LOOK_S: Final = 0.05
# While no attempt here has a standby: looking every LOOK_S would cost each node 2 ms per second.
LOOK_IDLE_S: Final = 0.5
RUNNER: Final = str(Path(__file__).with_name("standby_runner.py"))
# Below the job's own folder, and below the attempt's.
REPORT: Final = "standby-report"
LOCK: Final = "standby-lock"
WANTED: Final = "standby-wanted"
REPORT_BYTES: Final = 1_024


class Report(msgspec.Struct):
    """The report of a runner.

    `number` counts the promotions, `ready` says whether a standby is ready now.
    """

    number: int
    took_ms: int
    reason: str
    ready: bool
    ready_ms: int


_report = msgspec.json.Decoder(Report)


def argv_of(order: StartOrder, job_dir: str, has_account: bool, address: str) -> tuple[str, ...]:
    """Return the command of a replica with a standby.

    Engines that are told the node's address are probed there, because they listen nowhere else.
    """
    serve = order.spec.serve
    assert serve is not None, "only replicas have a standby"
    own = f"{job_dir}/{OWN}" if has_account else job_dir
    return (
        sys.executable,
        "-I",
        RUNNER,
        f"--health-path={serve.health_path}",
        f"--host={address if serve.hosted else LOOPBACK}",
        f"--lock={own}/{LOCK}",
        f"--report={own}/{REPORT}",
        f"--wanted={job_dir}/{WANTED}",
        f"--port={order.port}",
        f"--standby-port={standby_port(order.port)}",
        "--",
        *serving.hosted(order, address),
    )


class Standbys:
    """The last reports of the replicas' runners, by attempt."""

    def __init__(self, jobs_dir: Path) -> None:
        self.jobs_dir = jobs_dir
        self.ready: dict[str, tuple[str, int, bool]] = {}

    @staticmethod
    def pause_s(state: s.State) -> float:
        """Return the seconds until the next look."""
        some = any(attempt.standby is not None for attempt in state.attempts.values())
        return LOOK_S if some else LOOK_IDLE_S

    def look(self, state: s.State) -> list[Observation]:
        """Tell each runner whether its bytes are granted, and return what the runners report."""
        seen: list[Observation] = []
        for key, attempt in list(state.attempts.items()):
            if attempt.standby is not None and attempt.phase == s.LAUNCHED:
                seen += self._look(state, key, attempt)
        for key in [key for key in self.ready if key not in state.attempts]:
            del self.ready[key]
        return seen

    def _look(self, state: s.State, key: str, attempt: Attempt) -> Iterable[Observation]:
        order = attempt.order
        serve = order.spec.serve if order is not None else None
        kept = (
            state.keeps.wanted.get(kept_key(serve.model, kept_life.STANDBY))
            if serve is not None and order is not None
            else None
        )
        granted = kept is not None and kept.granted > 0
        self._say(self.jobs_dir / key / WANTED, granted)
        report = self._read(key)
        if report is None:
            return
        assert attempt.standby is not None, "only attempts with a standby are looked at"
        if report.number > attempt.standby.number:
            yield StandbySeen(key, report.number, report.took_ms, report.reason)
        if kept is not None and granted:
            yield from self._ready_of(key, kept, report)

    def _ready_of(self, key: str, kept: KeepOrder, report: Report) -> Iterable[Observation]:
        now = (kept_key(kept.model, str(kept.request)), kept.number, report.ready)
        before = self.ready.get(key)
        if before == now or (not report.ready and before is None):
            return
        self.ready[key] = now
        yield KeepSeen(
            model=kept.model,
            tier=kept.tier,
            request=kept.request,
            number=kept.number,
            state=kept_life.READY if report.ready else kept_life.FILLING,
            size_bytes=kept.granted,
            restore_ms=min(max(0, report.ready_ms), MS_MAX),
        )

    def _say(self, path: Path, granted: bool) -> None:
        """Keep the file that tells the runner to have a standby, or remove it."""
        if granted == path.exists():
            return
        with contextlib.suppress(OSError):
            if granted:
                path.touch(mode=0o644)
            else:
                path.unlink()

    def _read(self, key: str) -> Report | None:
        """Return the report of a runner; None if there is none, or it cannot be read."""
        folder = self.jobs_dir / key
        own = folder / OWN
        path = f"{own if own.is_dir() else folder}/{REPORT}"
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
        try:
            descriptor = os.open(path, flags)
            try:
                return _report.decode(os.read(descriptor, REPORT_BYTES))
            finally:
                os.close(descriptor)
        except (OSError, *UNDECODABLE):
            return None
