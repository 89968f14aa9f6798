"""The keeper of one NATS server: the server accepts exactly the joined nodes that the log admits.

The process that runs a server (the launcher of `muster up`, the first process of a container) also
runs its keeper. The keeper asks the gateways again and again, so a lost answer or a restart loses
nothing, and it ignores a gateway that is behind another. It stores the admitted nodes in
admitted.json; the server starts with them before a gateway answers. See decision 8.
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
from libs.embedded.server_answers import ServerAnswers

ASK_EVERY_S: Final = 0.5
ANSWER_S: Final = 2.0
# nats-server 2.15 links the imports of an account that a reload adds only at the reload after it.
RELOADS: Final = 2
RELOAD_PAUSE_S: Final = 0.3


class Keeper:
    """The keeper of the server named `server`.

    `configure` writes the server's file with these nodes and returns the nodes that it leaves out,
    with the reason. `send` sends a signal to the server. `say` prints a line for the operator.
    `answers` tells gateways about the server over the same connection.
    """

    def __init__(
        self,
        server: str,
        state: Path,
        configure: Callable[[Admitted], dict[str, str]],
        send: Callable[[signal.Signals], object],
        say: Callable[[str], object],
        answers: ServerAnswers | None = None,
    ) -> None:
        self.answers = answers
        self.server = server
        self.state = state
        self.configure = configure
        self.send = send
        self.say = say
        self.seq = 0
        self.refused: dict[str, str] = {}

    async def run(self, url: str, seed: bytes, ca_file: str) -> None:
        """Ask the gateways for ever, over the server itself.

        A server that has just started may not accept the first connections: try again.
        """
        client = None
        while client is None:
            try:
                client = await connection_nats.connect([url], permissions.KEEPER, seed, ca_file)
            except Unavailable:
                heed()
        try:
            if self.answers is not None:
                await self.answers.listen(NatsBus(client))
            while True:
                if not await self.ask(NatsBus(client)):
                    await asyncio.sleep(ASK_EVERY_S)
        finally:
            await client.close()

    async def ask(self, bus: Bus) -> bool:
        """Ask once. Return whether something changed: then the gateways are asked again at once."""
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
            self.say(f"the admitted nodes of other machines stay as they were: {error}")
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
    """Return the nodes in admitted.json; none if there is no file.

    Raises Corrupt for a file that cannot be decoded.
    """
    try:
        return msgspec.json.decode(_file(state).read_bytes(), type=Admitted)
    except FileNotFoundError:
        return Admitted()
    except msgspec.DecodeError as error:
        raise Corrupt(
            f"{_file(state)} cannot be read ({error}): remove it; the gateways send its content "
            "again"
        ) from error


def _file(state: Path) -> Path:
    return state / "admitted.json"
