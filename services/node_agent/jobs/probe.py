"""Probes a replica: does it answer one GET in time?

Only the status line is read. The probe uses the address that requests will use, so a server that
listens on the loopback alone does not become ready on a machine that others must reach. Twin: the
simulation's machines. Tests: tests/integration/test_probe.py.
"""

from typing import Final

import aiohttp
from yarl import URL

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
