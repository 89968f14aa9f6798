"""A server comes to accept exactly the nodes that the log says, whatever was lost, restarted or
behind meanwhile.
"""

import asyncio
import signal
from pathlib import Path

import pytest

from libs.common import facts as f
from libs.common.errors import Refused
from libs.common.messages.admission import Admitted
from libs.common.model import NodeId
from libs.common.transport.bus_memory import MemoryBus
from libs.embedded import keeper
from libs.embedded.keeper import Keeper
from services.api_gateway.agents.admission import Admission
from services.api_gateway.intents.membership_intents import hash_secret
from tests.history import History

SECRET = "s" * 32
FAR, NEAR = "far", "near"
KEYS = {FAR: "U" + "A" * 55, NEAR: "U" + "B" * 55}


class Server:
    """Its keeper, the file that it was given last, and the signals that it was sent."""

    def __init__(self, state: Path, name: str = "nats-1") -> None:
        self.file = Admitted()
        self.fails = False
        self.leaves_out: dict[str, str] = {}
        self.signals: list[signal.Signals] = []
        self.said: list[str] = []
        self.keeper = Keeper(
            server=name,
            state=state,
            configure=self._configure,
            send=self.signals.append,
            say=self.said.append,
        )

    def _configure(self, found: Admitted) -> dict[str, str]:
        if self.fails:
            raise Refused("the disk is full")
        self.file = found
        return self.leaves_out


def join(history: History, name: str) -> None:
    history.say(f.NodeInvited(node_id=NodeId(name), secret_hash=hash_secret(SECRET), expires_ns=1))
    history.say(
        f.NodeJoined(node_id=NodeId(name), secret_hash=hash_secret(SECRET), public_key=KEYS[name])
    )


def remove(history: History, name: str) -> None:
    history.say(f.NodeRemovalRequested(node_id=NodeId(name)))
    history.say(f.NodeRemoved(node_id=NodeId(name)))


async def gateway(history: History, bus: MemoryBus) -> Admission:
    found = Admission(lambda: history.cluster, bus)
    await found.listen()
    return found


async def test_server_is_reloaded_to_accept_joined_nodes(tmp_path: Path) -> None:
    history, bus, server = History(), MemoryBus(), Server(tmp_path)
    await gateway(history, bus)
    join(history, FAR)
    assert await server.keeper.ask(bus)
    assert server.file == keeper.load(tmp_path) == Admitted({FAR: KEYS[FAR]})
    assert server.signals == [signal.SIGHUP] * keeper.RELOADS
    assert server.said == ["nodes of other machines: far"]


async def test_server_is_not_reloaded_without_a_change_or_an_answer(
    tmp_path: Path,
) -> None:
    history, bus, server = History(), MemoryBus(), Server(tmp_path)
    assert not await server.keeper.ask(bus)
    await gateway(history, bus)
    join(history, FAR)
    await server.keeper.ask(bus)
    again = Server(tmp_path)
    for each in (server, again, again):
        each.signals.clear()
        assert not await each.keeper.ask(bus)
        assert each.signals == []


async def test_removed_node_gets_the_reason_before_its_key_is_refused(
    tmp_path: Path,
) -> None:
    history, bus, server = History(), MemoryBus(), Server(tmp_path)
    history.cluster.timing = history.cluster.timing.__class__(100, 1_000, 100, 300)
    await gateway(history, bus)
    join(history, FAR)
    await server.keeper.ask(bus)
    remove(history, FAR)
    hearing = asyncio.create_task(server.keeper.ask(bus))
    await asyncio.sleep(0.1)
    assert FAR in server.file.nodes
    await hearing
    assert server.file == Admitted({}, (FAR,))


async def test_answer_of_a_gateway_that_is_behind_is_ignored(tmp_path: Path) -> None:
    ahead, behind, server = History(), History(), Server(tmp_path)
    for each in (ahead, behind):
        join(each, FAR)
    remove(ahead, FAR)
    early, late = MemoryBus(), MemoryBus()
    ahead.cluster.timing = ahead.cluster.timing.__class__(1, 1_000, 100, 300)
    await gateway(ahead, early)
    await gateway(behind, late)
    await server.keeper.ask(early)
    assert not await server.keeper.ask(late)
    assert server.file == Admitted({}, (FAR,))


async def test_machine_has_joined_when_every_running_server_accepts_it(tmp_path: Path) -> None:
    history, bus = History(), MemoryBus()
    servers = [Server(tmp_path / name, name) for name in ("nats-1", "nats-2")]
    found = await gateway(history, bus)
    assert not await found.agreed(0, 0.0)
    join(history, FAR)
    for each in servers:
        await each.keeper.ask(bus)
    assert not await found.agreed(history.cluster.seq, 0.0)
    for each in servers:
        await each.keeper.ask(bus)
    assert await found.agreed(history.cluster.seq, 0.0)
    join(history, NEAR)
    for _ in range(2):
        await servers[0].keeper.ask(bus)
    assert not await found.agreed(history.cluster.seq, 0.0)


async def test_gateway_learns_which_nodes_a_server_refuses_and_why(tmp_path: Path) -> None:
    history, bus, server = History(), MemoryBus(), Server(tmp_path)
    found = await gateway(history, bus)
    server.leaves_out = {NEAR: "bad key"}
    join(history, FAR)
    join(history, NEAR)
    for _ in range(2):
        await server.keeper.ask(bus)
    assert (found.refusal(NEAR), found.refusal(FAR)) == ("bad key", "")
    assert server.said == ["node near is not accepted: bad key", "nodes of other machines: far"]


async def test_failed_write_of_the_file_is_retried_and_stops_no_server(
    tmp_path: Path,
) -> None:
    history, bus, server = History(), MemoryBus(), Server(tmp_path)
    await gateway(history, bus)
    join(history, FAR)
    server.fails = True
    assert not await server.keeper.ask(bus)
    assert server.signals == []
    server.fails = False
    assert await server.keeper.ask(bus)
    assert server.file == keeper.load(tmp_path) == Admitted({FAR: KEYS[FAR]})


async def test_revoked_key_is_refused_at_once_and_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history, bus, server = History(), MemoryBus(), Server(tmp_path)
    over: dict[NodeId, str] = {}
    admission = Admission(lambda: history.cluster, bus, over)
    await admission.listen()
    join(history, FAR)
    assert await server.keeper.ask(bus)
    paused: list[float] = []

    async def pause(seconds: float) -> None:
        paused.append(seconds)

    monkeypatch.setattr(keeper.asyncio, "sleep", pause)
    over[NodeId(FAR)] = "it wrote too much"
    history.say(f.TermBegan(instance="a"))
    assert await server.keeper.ask(bus)
    assert server.file == Admitted({}, (), (FAR,))
    assert set(paused) == {keeper.RELOAD_PAUSE_S}
    history.say(f.NodeRevoked(node_id=NodeId(FAR), reason="it wrote too much"))
    over.clear()
    assert not await server.keeper.ask(bus)
    assert keeper.load(tmp_path).refused == {FAR}


async def test_every_server_learns_of_a_revoked_node_even_if_the_log_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flood may keep the log from storing anything, so the sequence by which servers say how far
    they are stands still.
    """
    monkeypatch.setattr(keeper, "RELOAD_PAUSE_S", 0.0)
    history, bus = History(), MemoryBus()
    over: dict[NodeId, str] = {}
    await Admission(lambda: history.cluster, bus, over).listen()
    join(history, FAR)
    servers = [Server(tmp_path / name, name) for name in ("nats-1", "nats-2")]
    for server in servers:
        server.keeper.state.mkdir()
        assert await server.keeper.ask(bus)
    over[NodeId(FAR)] = "it wrote too much"
    assert [await server.keeper.ask(bus) for server in servers] == [True, True]
    history.say(f.NodeRevoked(node_id=NodeId(FAR), reason="it wrote too much"))
    late = Server(tmp_path, "nats-3")
    assert await late.keeper.ask(bus)
    assert [server.file.revoked for server in (*servers, late)] == [(FAR,)] * 3
    assert [await server.keeper.ask(bus) for server in servers] == [False, False]
