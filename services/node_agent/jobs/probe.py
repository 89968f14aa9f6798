"""Probes a replica: does it answer one GET in time?

Only the status line is read. The probe uses the address that requests will use, so a server that
listens on the loopback alone does not become ready on a machine that others must reach. A replica
with a key gets it from the probe too. Twin: the simulation's machines. Tests:
tests/integration/test_probe.py.
"""

import asyncio
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Final

from libs.common.model import AttemptRef, NodeId
from libs.common.transport.bus import Bus
from services.node_agent.core import actions as a
from services.node_agent.core import observations as o
from services.node_agent.core.state import key_of
from services.node_agent.directories.protocol import Machine, Prober
from services.node_agent.jobs.secret_values import replica_key_of

PROBE_S: Final = 2.0
HEADERS: Final = {"User-Agent": "muster-probe", "Connection": "close"}
# A server's answers to a request without its key.
KEY_DEMANDED: Final = (401, 403)


async def probe(
    address: str,
    port: int,
    path: str,
    within_s: float = 0,
    key: str | None = "",
    default_s: float = PROBE_S,
) -> str:
    """Return why the replica is not ready, in a few words; empty for a 2xx answer.

    Without `within_s` the answer has `default_s`. If the replica's key is unknown (None), a demand
    for it counts as an answer: gateways may be away while the replica works.
    """
    # At the first use, beside the loop: an agent without replicas starts sooner without it.
    aiohttp, yarl = await asyncio.to_thread(_client)
    within_s = within_s or default_s
    host = f"[{address}]" if ":" in address else address
    url = yarl.URL(f"http://{host}:{port}{path}", encoded=True)
    patience = aiohttp.ClientTimeout(total=within_s)
    headers = {**HEADERS, "Authorization": f"Bearer {key}"} if key else HEADERS
    try:
        async with (
            aiohttp.ClientSession(timeout=patience, headers=headers) as session,
            session.get(url, allow_redirects=False) as answer,
        ):
            is_ready = 200 <= answer.status < 300 or (key is None and answer.status in KEY_DEMANDED)
            return "" if is_ready else f"status {answer.status}"
    except TimeoutError:
        return f"no answer within {within_s:g} s"
    except OSError as error:
        return f"no connection: {error.strerror or error}"
    except aiohttp.ClientError:
        return "its answer is not HTTP"


def _client() -> tuple[ModuleType, ModuleType]:
    """Import the client of HTTP."""
    return import_module("aiohttp"), import_module("yarl")


class ReplicaProbes:
    """The probes of one node's replicas, and the keys that they carry, in memory only."""

    def __init__(self, prober: Prober, machine: Machine, bus: Bus) -> None:
        self.prober = prober
        self.machine = machine
        self.bus = bus
        self._keys: dict[AttemptRef, str] = {}

    async def probe(self, action: a.ProbeReplica, tell: Callable[[o.Observation], None]) -> None:
        """Probe a replica once and report the answer."""
        key = await self._key_of(action.ref) if action.keyed else ""
        address = self.machine.address
        answer = await self.prober(address, action.port, action.path, action.answer_s, key)
        tell(o.Probed(key_of(action.ref), answer))

    async def _key_of(self, ref: AttemptRef) -> str | None:
        found = self._keys.get(ref)
        if found is None:
            found = await replica_key_of(ref, NodeId(self.machine.node_id), self.bus)
        if found is not None:
            self._keys[ref] = found
        return found

    def forget(self, ref: AttemptRef) -> None:
        self._keys.pop(ref, None)
