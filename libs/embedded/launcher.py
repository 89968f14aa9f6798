"""The launcher of an embedded cluster: starts the server and the services, and stops them in order.

The server starts first and stops last. The scheduler stops before the others, while the log and the
agents still run, because it grants the long lease under which jobs survive the stop. A second
Ctrl-C kills all processes at once.
"""

import asyncio
import os
import shutil
import signal
import ssl
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from libs.common.errors import MusterError, Unavailable
from libs.common.messages.server_messages import ServerStatus
from libs.common.process import nats_client as nats_client
from libs.common.process.cancellation import end_all, heed
from libs.common.settings import configuration
from libs.common.transport import connection_nats, log_jetstream
from libs.common.transport.log import Log
from libs.embedded import (
    certificate_files,
    disk_watch,
    farewell,
    identity,
    nats_config,
    permissions,
    plan,
    runfile,
    servers,
)
from libs.embedded.disk_watch import DiskWatch
from libs.embedded.keeper import Keeper, load
from libs.embedded.living import process_id
from libs.embedded.processes import Child, Say, Spec, last_line, rotate
from libs.embedded.server_answers import ServerAnswers
from libs.embedded.shape import Shape
from libs.embedded.store_watch import Health

# The scheduler creates the log. A gateway takes longer than that to begin, so it begins at once.
EARLY: Final = (plan.SCHEDULER, plan.GATEWAY)
LOG_S: Final = 10.0
READY_POLL_S: Final = 0.02
READY_ASK_S: Final = 1.0
SCHEDULER_STOP_S: Final = 5.0
KEEPER_STOP_S: Final = 2.0
KILLED: Final = 130


def command() -> str:
    """Return the command to type:

    `muster` if it is on PATH, or else its path beside this Python.
    """
    beside = Path(sys.executable).parent / "muster"
    if shutil.which("muster") or not beside.exists():
        return "muster"
    return os.path.relpath(beside)


class Launcher:
    """One run of an embedded cluster.

    The caller holds the lock of `state`. `config` is the server's configuration file.
    """

    def __init__(self, state: Path, shape: Shape, config: Path, say: Say) -> None:
        self.state = state
        self.shape = shape
        self.config = config
        self.say = say
        self.settings = configuration.read()
        self.children: dict[str, Child] = {}
        self.tasks: list[asyncio.Task[None]] = []
        self.keeping: asyncio.Task[None] | None = None
        self.stop = asyncio.Event()
        self.killed = False
        self.ready = False

    async def run(self) -> int:
        """Run the cluster until it is stopped, and return the exit code.

        Raises Unavailable if the server does not start.
        """
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._asked_to_stop)
        begun, stopped = asyncio.create_task(self._begin()), asyncio.create_task(self.stop.wait())
        watching = asyncio.create_task(self._watch_disk())
        try:
            await asyncio.wait({begun, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if begun.done():
                begun.result()
            await stopped
        finally:
            # Both have ended before the stop, so that no process starts during it.
            await end_all((begun, watching))
            await self._end_all()
        return KILLED if self.killed else 0

    def _asked_to_stop(self) -> None:
        if self.stop.is_set():
            self.killed = True
            for child in self.children.values():
                child.kill()
        self.stop.set()

    async def _begin(self) -> None:
        nodes = len(self.shape.fleet.nodes) + len(load(self.state).nodes)
        self._keep([plan.server(self.state, self.config, nodes)])
        await asyncio.to_thread(self._wait_server)
        services = plan.control_plane(self.state, self.shape)
        self._keep([each for each in services if each.name in EARLY])
        await self._wait_log()
        self.say("the log is up; starting the services")
        others = [each for each in services if each.name not in EARLY]
        self._keep([*others, *plan.agents(self.state, self.shape)])
        self.keeping = asyncio.create_task(self._keep_server(), name=permissions.KEEPER)
        self.keeping.add_done_callback(self._ended)
        if await self._wait_ready():
            # Before the record: `muster up -d` shows what was said when it reads that.
            self._announce()
            self.ready = True
            self._record()
        else:
            self._report_unhealthy()

    async def _watch_disk(self) -> None:
        def restart() -> None:
            self.children[plan.SERVER].signal(signal.SIGKILL)

        watch = DiskWatch(self.state, lambda: shutil.disk_usage(self.state).free, self.say, restart)
        while True:
            await asyncio.sleep(watch.look())

    def _keep(self, specs: Sequence[Spec]) -> None:
        for spec in specs:
            spec.log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            rotate(spec.log)
            self.children[spec.name] = Child(spec, self.say, self._record)
            task = asyncio.create_task(self.children[spec.name].keep(), name=spec.name)
            task.add_done_callback(self._ended)
            self.tasks.append(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Stop everything if a task failed. That is a bug, and `_end_all` raises it."""
        if not task.cancelled() and task.exception() is not None:
            self.stop.set()

    def _record(self) -> None:
        tickets = {
            name: child.ticket for name, child in self.children.items() if child.ticket is not None
        }
        try:
            runfile.write(self.state, tickets, self.ready)
        except OSError as error:
            self.say(
                f"{runfile.run_file(self.state)} cannot be written ({error.strerror}): check the "
                "free space of the disk"
            )

    async def _wait_log(self) -> None:
        """Wait until the scheduler has created the stream, at most LOG_S.

        The other services would wait too, but with many log lines.
        """
        client = await connection_nats.connect(
            [self.shape.nats],
            permissions.OPERATOR,
            self._seed(permissions.OPERATOR),
            self._ca_file(),
        )
        log = log_jetstream.JetStreamLog(client)
        clock = asyncio.get_running_loop().time
        # Not a timeout around the loop: stream_info may swallow a cancellation.
        deadline = clock() + LOG_S
        while not await _has_log(log):
            if clock() >= deadline:
                self.say(
                    f"the scheduler has not created the log within {LOG_S:.0f} s; starting the "
                    "other services"
                )
                break
            await asyncio.sleep(READY_POLL_S)
        await client.close()

    def _seed(self, name: str) -> bytes:
        return identity.seed_file(self.state / "keys", name).read_bytes().strip()

    def _ca_file(self) -> str:
        return (
            str(certificate_files.certificate_file(self.state / "keys", certificate_files.TRUSTED))
            if self.shape.listen
            else ""
        )

    def _wait_server(self) -> None:
        tls = ssl.create_default_context(cafile=self._ca_file()) if self.shape.listen else None
        servers.wait_ready(
            self.shape.nats_port,
            plan.SERVER,
            host=self.shape.listen or nats_config.LOOPBACK,
            tls=tls,
        )

    async def _keep_server(self) -> None:
        """Run the keeper: the server accepts the nodes of other machines that the log admits."""
        configure = partial(plan.configure, self.state, self.shape)
        child = self.children[plan.SERVER]
        answers = ServerAnswers(
            plan.SERVER, self._server_status, partial(child.signal, signal.SIGTERM)
        )
        keeper = Keeper(
            server=plan.SERVER,
            state=self.state,
            configure=configure,
            send=child.signal,
            say=self.say,
            answers=answers,
        )
        await keeper.run(self.shape.nats, self._seed(permissions.KEEPER), self._ca_file())

    async def _server_status(self) -> ServerStatus:
        """Return what is known of the only server: this process has no monitoring port to ask."""
        free = shutil.disk_usage(self.state).free
        health = Health.LOST if free < disk_watch.FULL_BYTES else Health.GOOD
        return ServerStatus(
            server=plan.SERVER,
            process_id=process_id(self.children[plan.SERVER].ticket),
            health=health.value,
            free_bytes=free,
        )

    async def _wait_ready(self) -> bool:
        clock = asyncio.get_running_loop().time
        deadline = clock() + self.settings.up_ready_ms / 1_000
        while clock() < deadline:
            if await self._answers():
                return True
            await asyncio.sleep(READY_POLL_S)
        return False

    async def _answers(self) -> bool:
        """Return whether the gateway's /readyz answers 200."""
        host = self.shape.gateway.removeprefix("http://").rsplit(":", 1)[0]
        try:
            async with asyncio.timeout(READY_ASK_S):
                reader, writer = await asyncio.open_connection(host, self.shape.port)
                writer.write(
                    b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
                )
                status = await reader.readline()
                writer.close()
        except (OSError, TimeoutError):
            return False
        return status.split(b" ")[1:2] == [b"200"]

    def _announce(self) -> None:
        shape = self.shape
        self.say(f"muster is up: {shape.words}")
        self.say(f"  gateway  {shape.gateway}")
        if shape.grpc_port:
            self.say(f"  gRPC     {shape.grpc}")
        if shape.listen:
            self.say(f"  join     {command()} node add   (for machines that reach {shape.listen})")
        self.say(
            f"  try      {command()} run --gpus 1 -- python3 -c \"print('hello from a GPU job')\""
        )
        self.say(
            f"  stop     `{command()} down`, or Ctrl-C in the foreground (files: {self.state}, "
            f"logs: {plan.logs(self.state)})"
        )

    def _report_unhealthy(self) -> None:
        unhealthy = [
            child for child in self.children.values() if child.deaths or not child.living
        ] or [self.children[plan.GATEWAY]]
        late_s = self.settings.up_ready_ms / 1_000
        self.say(
            f"the gateway at {self.shape.gateway} is not ready after {late_s:.0f} s; the cluster "
            "goes on trying. Not healthy:"
        )
        for child in unhealthy:
            self.say(f"  {child.spec.name}: {last_line(child.spec.log)} (log: {child.spec.log})")

    async def _end_all(self) -> None:
        """Stop scheduler, agents, gateways, quota and audit, and the server, in this order."""
        agents = list(self.shape.fleet.nodes)
        stop_s = self.settings.up_stop_ms / 1_000
        order = [
            (plan.members(plan.SCHEDULER, self.shape.schedulers), SCHEDULER_STOP_S),
            (agents, stop_s),
            (plan.gateways(self.shape), stop_s),
        ]
        rest = [
            *plan.members(plan.QUOTA, self.shape.quotas),
            *plan.members(permissions.AUDIT, self.shape.audits),
        ]
        order += [(rest, stop_s), ([plan.SERVER], stop_s)]
        self.say("stopping (press Ctrl-C again to kill all processes at once)")
        if self.keeping is not None:
            self.keeping.cancel()
            await asyncio.wait((self.keeping,), timeout=KEEPER_STOP_S)
        for names, grace_s in order:
            await asyncio.gather(
                *(self.children[name].end(grace_s) for name in names if name in self.children)
            )
        await asyncio.gather(*self.tasks)
        if self.keeping is not None and not self.keeping.cancelled():
            self.keeping.result()
        runfile.remove(self.state)
        self._farewell()

    def _farewell(self) -> None:
        going_on = farewell.words(None, self.settings.stop_lease_ms)
        self.say(f"stopped. {going_on} Then `muster cancel JOB` ends one.")


async def _has_log(log: Log) -> bool:
    try:
        await log.bounds()
    except Unavailable:
        heed()
        return False
    return True


def run(state: Path, shape: Shape, config: Path, say: Say) -> int:
    """Run the cluster until it is stopped, and return the exit code."""
    try:
        return asyncio.run(Launcher(state, shape, config, say).run())
    except MusterError as error:
        raise type(error)(
            f"{error} (logs: {plan.logs(state)}; {plan.SERVER}: "
            f"{last_line(plan.logs(state) / f'{plan.SERVER}.log')})"
        ) from error
