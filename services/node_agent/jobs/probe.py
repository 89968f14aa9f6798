"""Probes a replica: does it answer one GET in time?

Only the status line is read. The probe uses the address that requests will use, so a server that
listens on the loopback alone does not become ready on a machine that others must reach. Twin: the
simulation's machines. Tests: tests/integration/test_probe.py.
"""

from collections.abc import Callable
from typing import Final

import aiohttp
from yarl import URL

from services.node_agent.core import actions as a
from services.node_agent.core import observations as o
from services.node_agent.core.state import key_of
from services.node_agent.directories.protocol import Prober

PROBE_S: Final = 2.0
HEADERS: Final = {"User-Agent": "muster-probe", "Connection": "close"}


async def probe(
    address: str, port: int, path: str, within_s: float = 0, default_s: float = PROBE_S
) -> str:
    """Return why the replica is not ready, in a few words; empty for a 2xx answer.

    Without `within_s` the answer has `default_s`.
    """
    within_s = within_s or default_s
    host = f"[{address}]" if ":" in address else address
    url = URL(f"http://{host}:{port}{path}", encoded=True)
    patience = aiohttp.ClientTimeout(total=within_s)
    try:
        async with (
            aiohttp.ClientSession(timeout=patience, headers=HEADERS) as session,
            session.get(url, allow_redirects=False) as answer,
        ):
            return "" if 200 <= answer.status < 300 else f"status {answer.status}"
    except TimeoutError:
        return f"no answer within {within_s:g} s"
    except OSError as error:
        return f"no connection: {error.strerror or error}"
    except aiohttp.ClientError:
        return "its answer is not HTTP"


async def probe_replica(
    prober: Prober, address: str, action: a.ProbeReplica, tell: Callable[[o.Observation], None]
) -> None:
    """Probe a replica once and report the answer."""
    answer = await prober(address, action.port, action.path, action.answer_s)
    tell(o.Probed(key_of(action.ref), answer))
