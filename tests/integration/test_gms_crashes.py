"""Kill -9 of server, agent, writer and reader of resident weights at random moments.

After each schedule bytes in use equal bytes owned, no descriptor is left over, and every engine
that may map weights reads what their writer wrote.
"""

import asyncio
import os
import random
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from services.node_agent.machine import processes
from tests.gms_world import Agent, Engine, admission, entry
from tests.memory_world import MIB, memory_of

SEEDS = int(os.environ.get("MUSTER_MEMORY_SEEDS", "6"))
STEPS = 14
LOCK_MS = 150
MEMORY = "memfd:muster-pool"


def mapped(engine: Engine) -> set[int]:
    """Return the inodes of pool memory that an engine maps."""
    lines = Path(f"/proc/{engine.process.pid}/maps").read_text().splitlines()
    return {int(line.split()[4]) for line in lines if MEMORY in line}


def lives(pid: int) -> bool:
    found = processes.process(pid)
    return found is not None and found.state not in "ZX"


class Schedule:
    """One random schedule. `surely` is the seed of the layout that must be published, if known."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.folder = folder
        self.entry = entry(folder, limit=24 * MIB)
        self.attempt = admission(folder)
        self.agent = Agent(folder / "resident")
        self.state: dict[str, Any] = {}
        self.engines = [Engine() for _ in range(2)]
        self.loaded = ["" for _ in self.engines]
        self.reads = [False for _ in self.engines]
        self.surely = ""
        self.loads = 0

    async def ask(self, *command: object) -> dict[str, Any]:
        self.state = await asyncio.to_thread(self.agent.ask, *command)
        assert self.state["refused"] == ""
        return self.state

    async def begin(self) -> None:
        await self.ask("open")
        await self.ask("serve", self.entry)
        await self.ask("admit", "m", self.attempt)

    async def publish(self) -> None:
        """Let the first engine publish weights that the second one maps."""
        writer, reader = self.engines
        for engine, *words in (
            (writer, "connect", self.entry.socket, "rw"),
            (writer, "load", "s0", MIB),
            (writer, "commit"),
            (reader, "connect", self.entry.socket, "ro"),
            (reader, "read"),
        ):
            await asyncio.to_thread(engine.ask, *words)
        self.surely, self.reads = "s0", [False, True]

    def choose(self, place: int) -> tuple[object, ...]:
        """Return what an engine does next: mostly the step that follows its last one."""
        socket = self.entry.socket
        if self.loaded[place] and self.chance.random() < 0.8:
            return ("commit",)
        if self.reads[place] and self.chance.random() < 0.8:
            return ("verify",)  # it keeps its mappings, while the other engine tries to write
        match self.chance.randrange(6):
            case 0 | 1:
                wanted = "rw" if any(self.reads) else self.chance.choice(["ro", "rw_or_ro"])
                return ("connect", socket, wanted, LOCK_MS)
            case 2 | 3:
                self.loads += 1
                sizes = [self.chance.randrange(1, MIB) for _ in range(2)]
                return ("load", f"s{self.loads}", *sizes)
            case 4:
                return ("read",)
        return ("verify",)

    async def step(self) -> None:
        place = self.chance.randrange(len(self.engines))
        engine, words = self.engines[place], self.choose(place)
        engine.send(*words)
        await asyncio.sleep(self.chance.random() * 0.008)
        killed = False
        match self.chance.randrange(6):
            case 0:
                await self.kill_server()
            case 1:
                await self.kill_agent()
            case 2:
                engine.kill()
                self.engines[place] = Engine()
                killed = True
        answer = [] if killed else await asyncio.to_thread(engine.answer)
        self.learn(place, words, answer)

    def learn(self, place: int, words: tuple[object, ...], answer: list[str]) -> None:
        """Note what must be published now, as far as the answers tell."""
        if answer:
            assert answer[0] in ("connected", "loaded", "committed", "read", "same", "failed")
        if answer and answer[0] == "same":
            assert answer[1] == "True"
        match words[0]:
            case "commit":
                self.surely = self.loaded[place] if answer == ["committed"] else ""
            case "connect" if words[2] == "rw" and answer[1:2] != ["None"]:
                self.surely = ""
        self.loaded[place] = str(words[1]) if answer[:1] == ["loaded"] else ""
        if words[0] != "verify" or not answer:
            self.reads[place] = answer[:1] == ["read"] and answer[1] != "0"

    async def kill_server(self) -> None:
        """Kill the server of this moment; the agent starts the next one."""
        state = await self.ask("state")
        pid = state["pid"]
        if lives(pid):
            os.kill(pid, signal.SIGKILL)

    async def kill_agent(self) -> None:
        """Kill the agent; not while the server is away: both at once have tests of their own."""
        await self.settled()
        self.agent.kill()
        self.agent = Agent(self.folder / "resident")
        await self.ask("open", "job.1")

    async def settled(self) -> None:
        """Wait until a server is up that has answered."""
        await self.ask("dismiss", "another.1")
        for _ in range(1_000):
            if lives((await self.ask("state"))["pid"]):
                return
            await asyncio.sleep(0.01)
        raise AssertionError("no server was started")

    def uneven(self) -> str:
        """Return what differs between server, agent and engines; empty if nothing."""
        server, agent = memory_of(self.state["pid"]), memory_of(self.agent.process.pid)
        owned = self.state["owned"].get("m", 0)
        if sum(server.values()) != owned:
            return f"{sum(server.values())} bytes are in use, {owned} owned"
        if server != agent:
            return f"the agent has {agent}, the server {server}"
        strange = [mapped(each) - set(server) for each in self.engines]
        return f"engines map {strange} without a lock" if any(strange) else ""

    async def even(self) -> None:
        for _ in range(500):
            await self.settled()
            found = self.uneven()
            if not found:
                return
            await asyncio.sleep(0.01)
        raise AssertionError(found)

    async def end(self) -> None:
        """Check contents, let all engines end, and check that only published weights are left."""
        for engine in self.engines:
            answer = await asyncio.to_thread(engine.ask, "verify")
            assert answer[:2] == ["same", "True"]
        await self.even()
        for engine in self.engines:
            engine.kill()
        self.engines = []
        for _ in range(500):
            (found,) = (await self.ask("state"))["entries"]
            if found["state"] in ("EMPTY", "COMMITTED"):
                break
            await asyncio.sleep(0.01)
        assert found["state"] == ("COMMITTED" if found["layout"] else "EMPTY")
        assert found["layout"] or not found["bytes"]
        await self.even()
        reader = Engine()
        if found["layout"]:
            assert (await self.connected(reader))[1] == "ro"
            await asyncio.to_thread(reader.ask, "read")
            answer = await asyncio.to_thread(reader.ask, "verify")
            assert answer[:2] == ["same", "True"]
            assert self.surely in ("", *answer[2].split("+"))
        else:
            assert self.surely == ""
        reader.kill()
        await self.ask("drop", "m", True)
        await self.even()
        assert (self.state["owned"], memory_of(self.state["pid"])) == ({}, {})

    async def connected(self, engine: Engine) -> list[str]:
        return await asyncio.to_thread(engine.ask, "connect", self.entry.socket, "rw_or_ro")

    def close(self) -> None:
        for engine in self.engines:
            engine.kill()
        self.agent.kill()
        if lives(self.state.get("pid", 0)):
            os.kill(self.state["pid"], signal.SIGKILL)


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_kill_9_at_any_step_of_the_protocol_loses_nothing(tmp_path: Path, seed: int) -> None:
    schedule = Schedule(tmp_path, seed)
    try:
        await schedule.begin()
        await schedule.publish()
        for _ in range(STEPS):
            await schedule.step()
        await schedule.end()
    finally:
        schedule.close()


async def test_an_agent_that_dies_while_it_restores_takes_the_server_along(tmp_path: Path) -> None:
    """Half of the state would be worse than none: the entry counts as lost."""
    schedule = Schedule(tmp_path, 0)
    try:
        await schedule.begin()
        writer, reader = schedule.engines[:2]
        await schedule.connected(writer)
        await asyncio.to_thread(writer.ask, "load", "s", MIB)
        await asyncio.to_thread(writer.ask, "commit")
        assert (await schedule.connected(reader))[1] == "ro"
        await asyncio.to_thread(reader.ask, "read")
        server = schedule.state["pid"]
        schedule.agent.process.send_signal(signal.SIGSTOP)
        os.kill(server, signal.SIGKILL)
        schedule.agent.kill()
        schedule.agent = Agent(tmp_path / "resident")
        state = await schedule.ask("open", "job.1")
        assert state["owned"] == {"m": 24 * MIB}
        assert await asyncio.to_thread(reader.ask, "verify") == ["same", "True", "s", str(2 * MIB)]
        reader.kill()
        state = await schedule.ask("dismiss", "job.1")
        assert state["owned"] == {"m": 0}
        assert msgspec.convert(state["entries"][0]["lost"], bool) is False
    finally:
        schedule.close()
