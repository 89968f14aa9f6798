"""Requests per second through Muster's gateway and another one, in turns, to the same replicas."""

from collections.abc import Callable, Sequence
from typing import Final

import uvloop

from bench import http_load
from bench.cluster import QUICK
from bench.peers import Missing, turns
from bench.peers.gateways import GATEWAYS

CLIENTS: Final = 16
ROUND_S: Final = 1.0 if QUICK else 4.0


def measure(
    peer: str,
    through: Sequence[int],
    replicas: Sequence[int],
    path: str,
    key: str,
    bodies: dict[str, bytes],
) -> None:
    """Measure each kind of request, or say why the peer cannot run here."""
    try:
        with GATEWAYS[peer](replicas) as front:
            for name, body in bodies.items():
                ours, theirs = f"{name}requests_per_s", f"{peer}_{name}requests_per_s"
                ways = {
                    ours: _rate(tuple(through), http_load.request(path, key, body)),
                    theirs: _rate((front.port,), http_load.request(path, front.key, body)),
                }
                for rate in ways.values():
                    rate()  # connections and first uses
                turns.in_turns({theirs: f"{name}over_{peer}"}, ways, "1/s")
    except Missing as error:
        turns.skipped(error)


def _rate(ports: tuple[int, ...], request: bytes) -> Callable[[], float]:
    def rate() -> float:
        run = http_load.run(ports, request=request, clients=CLIENTS, seconds=ROUND_S)
        return len(uvloop.run(run).whole) / ROUND_S

    return rate
