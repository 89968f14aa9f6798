"""The first process of a nats container: it runs nats-server and its keeper.

The keeper gives the server the joined nodes of other machines. This process exits when nats-server
does, with the same code, and nats-server ends with this process: Docker then restarts both. While
the disk has too little space (`space_watch.py`), this process runs without a server.
"""

import asyncio
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from libs.common.errors import Corrupt
from libs.common.messages.admission import Admitted
from libs.common.messages.server_messages import ServerStatus
from libs.compose import containers as c
from libs.compose import replaced
from libs.embedded import keeper, nats_config, server_file, servers, space_watch
from libs.embedded.keeper import Keeper
from libs.embedded.living import die_with_parent, process_id, ticket
from libs.embedded.nats_config import Server
from libs.embedded.server_answers import ServerAnswers, read_status
from libs.embedded.store_watch import StoreWatch

TOLD: Final = "server.json"
CONFIG: Final = "nats.conf"
# Time for a server that is restarted to end by itself.
END_S: Final = 10.0
# Time to close the connection to a server that has ended.
FAREWELL_S: Final = 2.0


class ServerIdentity(msgspec.Struct, frozen=True):
    """The container's server, and the public keys of all processes that `provision.py` created."""

    server: Server
    public_keys: dict[str, str]


def main(state: str = c.STATE) -> None:
    """Run nats-server and exit with its code."""
    sys.exit(asyncio.run(_run(Path(state))))


async def _run(state: Path) -> int:
    identity = _identity(state / c.IDENTITY / TOLD)
    store = Path(identity.server.store)
    replaced.make_space(store, print)
    if not await _has_space(store):
        return 0
    configure = partial(_configure, state, identity)
    for node_id, why in configure(keeper.load(state)).items():
        print(f"node {node_id} is not accepted: {why}")
    process = await asyncio.create_subprocess_exec(
        servers.binary(), "-c", str(state / CONFIG), preexec_fn=die_with_parent()
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(
            number, process.send_signal, signal.SIGINT
        )  # nats-server reports a failure after SIGTERM
    ended = asyncio.create_task(process.wait())
    restart = partial(_end, process, ended)
    replacement = asyncio.Event()
    answers = _answers(identity.server, process.pid, restart, replacement)
    kept = Keeper(
        server=identity.server.name,
        state=state,
        configure=configure,
        send=process.send_signal,
        say=print,
        answers=answers,
    )
    tasks = (
        asyncio.create_task(_keep(kept, state, identity.server.port)),
        asyncio.create_task(_watch_store(identity.server, restart)),
        asyncio.create_task(_end_when_full(store, process)),
        asyncio.create_task(replaced.delete_when_filled(store, answers.holds_all, print)),
    )
    await asyncio.wait((ended, *tasks), return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=FAREWELL_S)
    for task in tasks:
        if task.done() and not task.cancelled():
            task.result()
    if replacement.is_set():
        replaced.put_aside(store, print)
    return abs(await ended)


async def _has_space(store: Path) -> bool:
    """Wait until the server may be started. Return False if this process shall end instead."""
    waiting = asyncio.create_task(
        space_watch.until_space(partial(space_watch.free_bytes, store), print)
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, waiting.cancel)
    await asyncio.wait((waiting,))
    return not waiting.cancelled()


async def _end_when_full(store: Path, process: asyncio.subprocess.Process) -> None:
    """Kill the server before its disk is full. Docker then restarts the container, which waits."""
    free = await space_watch.until_scarce(partial(space_watch.free_bytes, store))
    print(f"nats-server is ended: only {free // space_watch.MIB} MiB are free on its disk")
    process.kill()
    await process.wait()


def _identity(path: Path) -> ServerIdentity:
    try:
        return msgspec.json.decode(path.read_bytes(), type=ServerIdentity)
    except (OSError, msgspec.DecodeError) as error:
        raise Corrupt(
            f"{path} cannot be read ({error}): run `docker compose up`, whose container `init` "
            "creates it"
        ) from error


def _configure(state: Path, identity: ServerIdentity, found: Admitted) -> dict[str, str]:
    """Write the server's file with these nodes.

    Return those that it leaves out, with the reason.
    """
    return server_file.write(
        binary=servers.binary(),
        path=state / CONFIG,
        server=identity.server,
        fleet=c.FLEET,
        public_keys=identity.public_keys,
        found=found,
    )


async def _keep(kept: Keeper, state: Path, port: int) -> None:
    """Run the keeper over this server."""
    own = state / c.IDENTITY
    await kept.run(
        f"nats://{nats_config.LOOPBACK}:{port}",
        (own / "nkey.seed").read_bytes().strip(),
        str(own / c.AUTHORITY_FILE),
    )


async def _watch_store(server: Server, restart: Callable[[], object]) -> None:
    """Watch the server's store. `restart` ends the server; Docker then restarts the container."""
    await StoreWatch(print, restart).run(_monitor(server))


def _monitor(server: Server) -> str:
    return f"http://{nats_config.LOOPBACK}:{server.monitor_port}"


def _answers(
    server: Server, pid: int, restart: Callable[[], object], replacement: asyncio.Event
) -> ServerAnswers:
    """Return what answers gateways about this server.

    An order ends the server; Docker then restarts the container.
    """
    url, name = _monitor(server), process_id(ticket(pid))

    async def status() -> ServerStatus:
        free = space_watch.free_bytes(Path(server.store))
        return await read_status(server.name, url, name, free or 0)

    def replace() -> None:
        replacement.set()
        restart()

    return ServerAnswers(server.name, status, restart, replace)


def _end(process: asyncio.subprocess.Process, ended: asyncio.Task[int]) -> None:
    """Ask the server to end, and kill it after END_S: a frozen server hears nothing."""
    process.terminate()

    def kill() -> None:
        if not ended.done():
            process.kill()

    asyncio.get_running_loop().call_later(END_S, kill)
