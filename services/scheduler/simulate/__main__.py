"""`python -m services.scheduler.simulate ASK`: the process behind `muster simulate`.

ASK is an `Ask` as JSON; the report goes to stdout as JSON.
"""

import json
import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from libs.common.errors import Refused
from libs.common.model import WHOLE_GPU
from services.scheduler.placement.strategies import DEFAULT, STRATEGIES
from services.scheduler.policies import POLICIES
from services.scheduler.simulate import plots, readers
from services.scheduler.simulate.meter import Meter
from services.scheduler.simulate.nodes import nodes_of
from services.scheduler.simulate.replay import Replay
from services.scheduler.simulate.report import completion, report, utilisation
from services.scheduler.simulate.resort import ORDERS, Resort
from services.scheduler.simulate.trace import SECOND, requests, shuffled

TRACES: Final = "MUSTER_TRACES"


class Ask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of a simulation.

    `preempt` selects the protocol of `resort.py`. `seed` other than 0 shuffles the jobs over the
    same times. `backfill` None uses the order's default. `limits` is described at `trace.requests`.
    """

    trace: str
    nodes: str
    orders: list[str]
    place: str = DEFAULT
    preempt: bool = False
    overhead_s: int = 0
    until_s: int = 0
    speed: float = 1.0
    seed: int = 0
    backfill: bool | None = None
    limits: float = 0.0
    plots: str = ""


def simulate(ask: Ask) -> dict[str, Any]:
    """Simulate every order over the same trace. Raises Refused before the simulation starts."""
    _check(ask)
    directory = Path(ask.plots) if ask.plots else None
    if directory is not None:
        plots.drawing()
        directory.mkdir(parents=True, exist_ok=True)
    meters = {order: run(ask, order) for order in dict.fromkeys(ask.orders)}
    if directory is not None:
        plots.draw_utilisation(
            directory / "utilisation.svg",
            {order: utilisation(meter) for order, (meter, _) in meters.items()},
        )
        plots.draw_completion(
            directory / "completion.svg",
            {order: completion(meter) for order, (meter, _) in meters.items()},
        )
    runs = [
        {"order": order, **report(meter), **counts} for order, (meter, counts) in meters.items()
    ]
    protocol = "all jobs placed again at each event" if ask.preempt else "live"
    return {
        "trace": ask.trace,
        "nodes": ask.nodes,
        "place": ask.place,
        "protocol": protocol,
        "overhead_s": ask.overhead_s,
        "runs": runs,
    }


def run(ask: Ask, order: str) -> tuple[Meter, dict[str, int]]:
    """Simulate one order; return its measurements and its counts."""
    nodes = nodes_of(ask.nodes, found)
    rows = readers.read(found(ask.trace))
    if ask.seed:
        # The same seed must give the same order.
        dice = random.Random(ask.seed)  # nosec B311
        rows = list(shuffled(rows, dice.sample(range(len(rows)), len(rows))))
    jobs = requests(rows, max(len(node.gpus) for node in nodes), ask.speed, ask.limits)
    meter = Meter({node.node_id: WHOLE_GPU * len(node.gpus) for node in nodes})
    replay: Replay | Resort
    if ask.preempt:
        replay = Resort(
            nodes=nodes,
            requests=jobs,
            order=order,
            place=ask.place,
            meter=meter,
            overhead_ns=ask.overhead_s * SECOND,
        )
    else:
        replay = Replay(
            nodes=nodes,
            requests=jobs,
            order=order,
            place=ask.place,
            meter=meter,
            backfill=ask.backfill,
        )
    replay.run(ask.until_s * SECOND if ask.until_s else None)
    names = ("rejected", "preemptions", "migrations", "decisions")
    return meter, {name: getattr(replay, name) for name in names}


def found(name: str) -> Path:
    """Return the file with this name, here or in the folder of traces."""
    folder = os.environ.get(TRACES, "")
    for path in (Path(name), Path(folder) / name):
        if path.is_file():
            return path
    where = f"in {folder}" if folder else f"in the folder that {TRACES} names (it is not set)"
    raise Refused(
        f"there is no file {name}, neither here nor {where}: give its path or set {TRACES}"
    )


def _check(ask: Ask) -> None:
    known = ORDERS if ask.preempt else POLICIES
    for order in ask.orders:
        if order not in known:
            hint = f"; --preempt has {', '.join(ORDERS)}" if order in ORDERS else ""
            raise Refused(
                f"there is no policy {order} in this protocol: choose {', '.join(known)}{hint}"
            )
    if ask.place not in STRATEGIES:
        raise Refused(f"there is no placement {ask.place}: choose {', '.join(STRATEGIES)}")
    if ask.speed <= 0:
        raise Refused(f"--speed must be above 0, not {ask.speed:g}")
    if ask.limits and ask.limits < 1:
        raise Refused(
            f"--limits must be at least 1, not {ask.limits:g}: below 1 every job would be cut short"
        )


def main(arguments: Sequence[str]) -> int:
    try:
        print(json.dumps(simulate(msgspec.json.decode(arguments[0], type=Ask))))
    except (Refused, OSError) as error:
        print(f"muster: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
