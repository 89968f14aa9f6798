"""Answers gateways that collect the evidence of a job, and tells one of a job without progress.

A diagnosis costs a thread for some seconds, so their number is bounded; the evidence of the last
one stays in the attempt's directory. Jobs are looked at every LOOK_S for signs of progress; the
node of rank 0 tells a gateway, which examines all nodes of the job. Tests:
tests/integration/test_diagnosis_agent.py.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec

from libs.common.diagnosis.evidence import (
    TEXT_MAX,
    DeviceSeen,
    DiagnosisAsk,
    NodeSeen,
    SilenceTold,
)
from libs.common.errors import Unavailable
from libs.common.facts import UNDECODABLE
from libs.common.model import AttemptRef, GpuId, NodeId
from libs.common.subjects import ask_diagnosis, ask_node
from libs.common.transport.bus import Bus
from services.node_agent.core import state as s
from services.node_agent.core.state import Attempt
from services.node_agent.devices.sampling import Sampling
from services.node_agent.diagnosis.collecting import COLLECT_S, Attempted, collect
from services.node_agent.diagnosis.launch_hook import files_of
from services.node_agent.diagnosis.rank_processes import moved_in_all, rank_processes
from services.node_agent.diagnosis.silence import LinkErrors, Signs, Silence
from services.node_agent.directories.protocol import JobSupervisors
from services.node_agent.drivers.readings import Lacking, Reading, Sample
from services.node_agent.machine import processes, synced_file

LOOK_S: Final = 15.0
# The look at the bytes of one attempt, which its processes can make slow.
SIGNS_S: Final = 1.0
# Diagnoses at once, and with those that wait for a thread.
AT_ONCE: Final = 4
WAITING_MAX: Final = 16
TELL_S: Final = 5.0
# The file with the evidence, in the attempt's directory.
KEPT: Final = "diagnosis.json"
KEPT_BYTES: Final = 4 << 20
UNKNOWN: Final = -1

Collector = Callable[[Attempt, str, Mapping[GpuId, Sample], float], NodeSeen]

logger = logging.getLogger(__name__)

_ask = msgspec.msgpack.Decoder(DiagnosisAsk)
_seen = msgspec.json.Decoder(NodeSeen)
_encode = msgspec.msgpack.Encoder().encode


class Diagnosing:
    """The diagnoses of one agent. `after_s`: silence after which a gateway is told; 0: never."""

    def __init__(
        self,
        node_id: NodeId,
        jobs: JobSupervisors,
        sampling: Callable[[], Sampling],
        state: Callable[[], s.State],
        after_s: int,
    ) -> None:
        self.node_id = node_id
        self.jobs = jobs
        self.sampling = sampling
        self.state = state
        self.after_s = after_s
        self.silence = Silence()
        self.links = LinkErrors()
        # Attempts whose flight recorders write dumps now, with the number of their diagnoses.
        self.dumping = Counter[str]()
        self.threads = ThreadPoolExecutor(AT_ONCE, "diagnosis")
        self.open = 0
        self.bus: Bus | None = None

    async def listen(self, bus: Bus) -> None:
        self.bus = bus
        await bus.subscribe(ask_node(self.node_id, "diagnosis"), self._on_ask, concurrent=True)

    async def _on_ask(self, subject: str, data: bytes) -> bytes:
        try:
            ask = _ask.decode(data)
        except UNDECODABLE as error:
            return _encode(NodeSeen(self.node_id, error=f"not a DiagnosisAsk: {error}"))
        if self.open >= WAITING_MAX:
            return _encode(NodeSeen(self.node_id, error="the node has too many diagnoses: wait"))
        self.open += 1
        try:
            return _encode(await self.diagnosed(ask))
        except OSError as error:
            return _encode(NodeSeen(self.node_id, error=f"the evidence was not read: {error}"))
        finally:
            self.open -= 1

    async def diagnosed(self, ask: DiagnosisAsk) -> NodeSeen:
        """Return the evidence of an attempt, or that of its last diagnosis. Raises OSError."""
        ref = AttemptRef(ask.job_id, ask.attempt)
        folder = self.jobs.directory_of(ref)
        if ask.kept:
            return await asyncio.to_thread(_kept, Path(folder), self.node_id)
        attempt = self.state().attempts.get(s.key_of(ref))
        if attempt is None:
            return NodeSeen(self.node_id, error=f"node {self.node_id} does not run the attempt")
        if attempt.exit is not None:
            return NodeSeen(self.node_id, attempt.rank, ended=_exit_words(attempt))
        deadline = time.monotonic() + COLLECT_S  # it may wait for a thread meanwhile
        await self._note_links()
        samples = await self.sampling().now()
        function: Collector = self._with_dumps if ask.dumps else self._collected
        loop = asyncio.get_running_loop()
        key, weight = s.key_of(ref), int(ask.dumps)
        self.dumping[key] += weight
        try:
            seen = await loop.run_in_executor(
                self.threads, function, attempt, folder, samples, deadline
            )
        finally:
            self.dumping -= Counter({key: weight})
        await self._note_links()
        seen = msgspec.structs.replace(seen, devices=self._devices(attempt, samples))
        await asyncio.to_thread(_keep, Path(folder), seen)
        return seen

    def _with_dumps(
        self, attempt: Attempt, folder: str, samples: Mapping[GpuId, Sample], deadline: float
    ) -> NodeSeen:
        """Collect with new dumps; what the ranks read and write for them is no progress."""
        before = self.signs(attempt)
        seen = self._collected(attempt, folder, samples, deadline, dumps=True)
        self.silence.excuse(s.key_of(attempt.ref), before, self.signs(attempt))
        return seen

    def _collected(
        self,
        attempt: Attempt,
        folder: str,
        samples: Mapping[GpuId, Sample],
        deadline: float,
        dumps: bool = False,
    ) -> NodeSeen:
        key, now_ns = s.key_of(attempt.ref), processes.boottime_ns()
        return collect(
            Attempted(
                node_id=self.node_id,
                member=attempt.rank,
                pids=self.jobs.processes(attempt.ref),
                gpus=attempt.gpus,
                devices=self._devices(attempt, samples),
                folder=files_of(folder),
                ids=self._ids(attempt),
                silent_s=self.silence.silent_s(key, now_ns),
                dumps=dumps,
            ),
            deadline_s=deadline,
        )

    def _ids(self, attempt: Attempt) -> Sequence[int]:
        """Return the ids of the job's user; empty if the job runs as the agent's user."""
        found = self.jobs.root_of(attempt.ref)
        return found[2] if found is not None else ()

    def _devices(self, attempt: Attempt, samples: Mapping[GpuId, Sample]) -> tuple[DeviceSeen, ...]:
        troubles = self.state().devices.troubles
        return tuple(
            _device(
                uuid,
                samples.get(uuid),
                self.links.rise(uuid, attempt.began_ns),
                list(troubles.get(uuid, {})),
            )
            for uuid in attempt.gpus
        )

    async def _note_links(self) -> None:
        samples = await self.sampling().now()
        counts: dict[str, int] = {
            uuid: sample.link_errors
            for uuid, sample in samples.items()
            if isinstance(sample.link_errors, int)
        }
        self.links.note(counts, processes.boottime_ns())

    async def watch(self) -> None:
        """Look for jobs without progress, for ever."""
        while self.after_s > 0:
            await asyncio.sleep(min(LOOK_S, max(1.0, self.after_s / 4)))
            running = [
                attempt
                for attempt in self.state().attempts.values()
                if attempt.phase == s.LAUNCHED and attempt.pid
            ]
            self.silence.keep([s.key_of(attempt.ref) for attempt in running])
            await self._note_links()
            due = await asyncio.to_thread(self._silent, running)
            for attempt, silent_s in due:
                await self._tell(SilenceTold(attempt.ref.job_id, attempt.ref.attempt, silent_s))

    def _silent(self, running: Sequence[Attempt]) -> list[tuple[Attempt, int]]:
        """Return the attempts of rank 0 with several ranks of which a gateway must be told."""
        found = []
        for attempt in running:
            key, now_ns = s.key_of(attempt.ref), processes.boottime_ns()
            pids = self.jobs.processes(attempt.ref)
            if not self.dumping[key]:
                self.silence.note(key, self._signs(attempt, pids), now_ns)
            is_due = attempt.rank == 0 and self.silence.is_due(key, now_ns, self.after_s)
            if is_due and any(one.world > 1 for one in rank_processes(pids)):
                found.append((attempt, self.silence.silent_s(key, now_ns)))
        return found

    def signs(self, attempt: Attempt) -> Signs:
        """Return the present signs of progress of an attempt."""
        return self._signs(attempt, self.jobs.processes(attempt.ref))

    def _signs(self, attempt: Attempt, pids: Sequence[int]) -> Signs:
        return (
            self.jobs.checkpointed_ns(attempt.ref),
            self.jobs.output_bytes(attempt.ref),
            moved_in_all(pids, self._ids(attempt), time.monotonic() + SIGNS_S),
            hash(tuple(pids)),
        )

    async def _tell(self, told: SilenceTold) -> None:
        if self.bus is None:
            return
        try:
            await self.bus.request(ask_diagnosis(self.node_id), _encode(told), TELL_S)
        except Unavailable as error:
            logger.warning("no gateway was told that %s is silent: %s", told.job_id, error)


def _device(
    uuid: GpuId, sample: Sample | None, link_errors: int, troubles: Sequence[str]
) -> DeviceSeen:
    fault = ", ".join(troubles)[:TEXT_MAX]
    if sample is None:
        return DeviceSeen(uuid, link_errors=link_errors, fault=fault)
    worst = ""
    if not isinstance(sample.link_counts, Lacking) and sample.link_counts:
        most = max(sample.link_counts, key=lambda each: each.count)
        worst = f", most on link {most.link} ({most.kind})"
    return DeviceSeen(
        uuid,
        busy_percent=_known(sample.busy_percent),
        power_mw=_known(sample.power_mw),
        link_errors=link_errors,
        worst_link=worst,
        fault=fault,
    )


def _known(value: Reading) -> int:
    return value if isinstance(value, int) else UNKNOWN


def _exit_words(attempt: Attempt) -> str:
    exit_ = attempt.exit
    assert exit_ is not None, "an attempt that ended"
    return exit_.detail or exit_.reason or f"exit code {exit_.exit_code}"


def _keep(folder: Path, seen: NodeSeen) -> None:
    """Keep the evidence in the attempt's directory, instead of the one before. Raises OSError."""
    if folder.is_dir():
        synced_file.replace(folder / KEPT, msgspec.json.encode(seen))


def _kept(folder: Path, node_id: NodeId) -> NodeSeen:
    """Return the kept evidence. Raises OSError."""
    try:
        with (folder / KEPT).open("rb") as file:
            return _seen.decode(file.read(KEPT_BYTES))
    except FileNotFoundError:
        return NodeSeen(node_id, error="the node has no evidence of this attempt any more")
    except UNDECODABLE as error:
        return NodeSeen(node_id, error=f"the kept evidence cannot be read: {error}")
