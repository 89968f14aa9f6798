"""A real nats-server with real processes of one service, of which one leads."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from nats.aio.client import Client
from nats.errors import Error as NatsError

from libs.common import facts as f
from libs.common import subjects
from libs.common.errors import Unavailable
from libs.common.facts import AnyFact
from libs.common.model import JobId, JobSpec
from libs.common.process.clock import SystemClock
from libs.common.state.cluster import LIFE_EPOCHS
from libs.common.transport.bus_nats import NatsBus
from libs.common.transport.connection_nats import connect
from libs.common.transport.log_jetstream import JetStreamLog
from libs.common.transport.writer import Writer
from libs.embedded.living import die_with_parent
from tests.natsserver import NatsServer

WAIT_S: Final = 30.0
LOOK_S: Final = 0.01


class Leaders:
    """Processes of the service, by instance, and a client of the bus that writes as a gateway."""

    def __init__(self, folder: Path, server: NatsServer, service: str, client: Client) -> None:
        self.folder = folder
        self.server = server
        self.service = service
        self.log = JetStreamLog(client)
        self.bus = NatsBus(client)
        self.living: dict[str, subprocess.Popen[bytes]] = {}
        self.writer = Writer(self.log, SystemClock(), subjects.gateway("load"), lambda: 0)
        self.number = 0

    def start(self, instance: str, **settings: str) -> None:
        """Start a process, or start it again."""
        state = self.folder / f"{self.service}-{instance}"
        state.mkdir(exist_ok=True)
        told = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join(sys.path),
            "MUSTER_NATS": self.server.url,
            "MUSTER_STATE": str(state),
            "MUSTER_INSTANCE": instance,
            "MUSTER_AUDIT_URL": f"sqlite:///{self.folder}/audit.db",
            **settings,
        }
        with self.said(instance).open("ab") as said:
            self.living[instance] = subprocess.Popen(
                [sys.executable, "-m", f"services.{self.service}"],
                env=told,
                stdout=said,
                stderr=said,
                preexec_fn=die_with_parent(),
            )

    def said(self, instance: str) -> Path:
        return self.folder / f"{self.service}-{instance}.log"

    def kill(self, instance: str) -> None:
        process = self.living.pop(instance)
        process.kill()
        process.wait()

    def send(self, instance: str, number: signal.Signals) -> None:
        self.living[instance].send_signal(number)

    async def terms(self) -> list[tuple[int, str]]:
        """Return the (sequence, instance) of all terms of the service in the log."""
        kind = f.TermBegan if self.service == "scheduler" else f.QuotaTermBegan
        return [(seq, fact.instance) for seq, fact in await self.facts() if isinstance(fact, kind)]

    async def facts(self) -> list[tuple[int, AnyFact | f.Unknown]]:
        """Return all facts in the log with their sequences."""
        found: list[tuple[int, AnyFact | f.Unknown]] = []
        last = (await self.log.bounds())[1]
        if not last:
            return []
        async for batch in self.log.read(0):
            found += [(entry.seq, fact) for entry in batch for fact in f.decode(entry.data).facts]
            if batch and batch[-1].seq >= last:
                return found
        raise AssertionError

    async def leader(self, besides: Sequence[str] = (), life: int = 0) -> str:
        """Return the instance that leads in this life and answers, once it is none of `besides`."""
        async with asyncio.timeout(WAIT_S):
            while True:
                try:
                    epoch = int(await self.bus.request(subjects.ask_alive(self.service), b"", 0.1))
                except Unavailable:
                    epoch = 0
                began = epoch - life * LIFE_EPOCHS
                terms = dict(await self.terms()) if epoch else {}
                if terms.get(began, "") not in ("", *besides):
                    return terms[began]
                await asyncio.sleep(LOOK_S)

    async def audit_leader(self, besides: Sequence[str] = ()) -> str:
        """Return the instance of audit that leads and answers, once it is none of `besides`."""
        js = self.bus.client.jetstream()
        async with asyncio.timeout(WAIT_S):
            while True:
                try:
                    epoch = int(await self.bus.request(subjects.ask_alive("audit"), b"", 0.1))
                    term = await js.get_last_msg("KV_LEADER", subjects.leader("audit"))
                except (Unavailable, NatsError):
                    epoch = 0
                found = (term.data or b"").decode() if epoch and term.seq == epoch else ""
                if found not in ("", *besides):
                    return found
                await asyncio.sleep(LOOK_S)

    async def follows(self, instance: str) -> None:
        """Wait until the process follows the log and asks for its turn."""
        async with asyncio.timeout(WAIT_S):
            while not re.search(r"follows the log", self.said(instance).read_text()):
                assert self.living[instance].poll() is None, self.said(instance).read_text()
                await asyncio.sleep(LOOK_S)

    async def submit(self, count: int = 1) -> list[JobId]:
        """Record that many jobs in one commit, as a gateway does."""
        jobs = [JobId(f"job-{self.number + each}") for each in range(count)]
        self.number += count
        await self.writer.commit(
            [f.JobSubmitted(job_id=job, spec=JobSpec(command=("true",))) for job in jobs]
        )
        return jobs


@asynccontextmanager
async def leaders(folder: Path, service: str) -> AsyncIterator[Leaders]:
    """Run a server. Its processes end with the block."""
    server = NatsServer(folder)
    server.start()
    client = await connect([server.url], "test")
    made = Leaders(folder, server, service, client)
    try:
        yield made
    finally:
        for process in made.living.values():
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
        await client.close()
        server.kill()
