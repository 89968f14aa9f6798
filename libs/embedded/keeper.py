"""Keeps one NATS server accepting the nodes of other machines that the log says, and no others:
admitted.json beside it.

Whoever runs a server (the launcher of `muster up`, the first process of a container) also runs
this. It asks the gateways, as an agent asks the scheduler: a lost answer is asked for again, a
restart of either side loses nothing, and a gateway that is behind another is not believed. The file
is what the server starts with before anyone answers. Docs: decision 8.
"""

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from libs.common import subjects
from libs.common.errors import Corrupt, Refused, Unavailable
from libs.common.messages.admission import Admitted, AdmittedAnswer, AdmittedAsk
from libs.common.process.cancellation import heed
from libs.common.transport import connection_nats
from libs.common.transport.bus import Bus
from libs.common.transport.bus_nats import NatsBus
from libs.embedded import permissions
from libs.embedded.identity import write_private

ASK_EVERY_S: Final = 0.5
ANSWER_S: Final = 2.0
# nats-server 2.15 links the imports of an account that a reload adds only at the reload after it.
RELOADS: Final = 2
RELOAD_PAUSE_S: Final = 0.3


class Keeper:
    """`configure` writes the server's file with these nodes, and returns those that the file leaves
    out with the reason; `send` signals the server; `say` is for who watches it.
    """

    def __init__(
        self,
        server: str,
        state: Path,
        configure: Callable[[Admitted], dict[str, str]],
        send: Callable[[signal.Signals], object],
        say: Callable[[str], object],
    ) -> None:
        self.server = server
        self.state = state
        self.configure = configure
        self.send = send
        self.say = say
        self.seq = 0
        self.refused: dict[str, str] = {}

    async def run(self, url: str, seed: bytes, ca_file: str) -> None:
        """For ever, over the server itself; one that has just been started may take longer than one
        patience.
        """
        client = None
        while client is None:
            try:
                client = await connection_nats.connect([url], permissions.KEEPER, seed, ca_file)
            except Unavailable:
                heed()
        try:
            while True:
                if not await self.ask(NatsBus(client)):
                    await asyncio.sleep(ASK_EVERY_S)
        finally:
            await client.close()

    async def ask(self, bus: Bus) -> bool:
        """Once; whether something changed, which the gateways are to hear at once."""
        ask = msgspec.msgpack.encode(AdmittedAsk(self.server, self.seq, self.refused))
        try:
            answer = msgspec.msgpack.decode(
                await bus.request(subjects.ADMITTED, ask, ANSWER_S), type=AdmittedAnswer
            )
        except (Unavailable, msgspec.DecodeError):
            heed()
            return False
        if answer.seq < self.seq:
            return False
        changed = answer.admitted is not None and answer.admitted != load(self.state)
        if (
            changed
            and answer.admitted is not None
            and not await self._accept(answer.admitted, answer.farewell_ms)
        ):
            return False
        self.seq = answer.seq
        return changed

    async def _accept(self, wanted: Admitted, farewell_ms: int) -> bool:
        """Have the server accept these nodes.

        A removed node first gets the reason; a revoked node loses its key at once.

        Connections whose account and key stay are not touched; those of keys that are gone are
        closed. False if the file could not be written: it is tried again with the next answer.
        """
        before = load(self.state)
        if set(wanted.removed) - before.refused and not set(wanted.revoked) - before.refused:
            await asyncio.sleep(farewell_ms / 1_000)
        try:
            self.refused = await asyncio.to_thread(self.configure, wanted)
        except (Refused, OSError) as error:
            self.say(f"the nodes of other machines stay as they were: {error}")
            return False
        for _ in range(RELOADS):
            self.send(signal.SIGHUP)
            await asyncio.sleep(RELOAD_PAUSE_S)
        write_private(_file(self.state), msgspec.json.encode(wanted).decode())
        for node_id, why in self.refused.items():
            self.say(f"node {node_id[:64]} is not accepted: {why}")
        accepted = [node_id for node_id in wanted.nodes if node_id not in self.refused]
        self.say(f"nodes of other machines: {', '.join(accepted) or 'none'}")
        return True


def load(state: Path) -> Admitted:
    """None yet: an empty one. Raises Corrupt for a file that is not ours."""
    try:
        return msgspec.json.decode(_file(state).read_bytes(), type=Admitted)
    except FileNotFoundError:
        return Admitted()
    except msgspec.DecodeError as error:
        raise Corrupt(
            f"{_file(state)} cannot be read ({error}): remove it, a gateway says it again"
        ) from error


def _file(state: Path) -> Path:
    return state / "admitted.json"
