"""A serving cluster in virtual time: engines of tests/sim/engine.py behind a gateway that is given.

`Run` delivers arrivals, first tokens, ends and failures of engines to the gateway in the order of
time, and keeps what each request got. The gateway chooses the engines; the one with Muster's rules
is in tests/sim/serving_gateway.py, those of other routers are in the benchmark.
"""

import heapq
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from tests.sim.engine import FIRST, Asked, Engine, EngineSettings

SECOND_NS: Final = 1_000_000_000
TICK_NS: Final = SECOND_NS
# Far longer than any request takes that is not lost.
LONGEST_NS: Final = 3_600 * SECOND_NS
# Outcomes.
ANSWERED: Final = "answered"
BROKEN: Final = "broken"
REFUSED: Final = "refused"


class Outcome(NamedTuple):
    """How a request ended, its first token and its end; 0 for a time that did not come."""

    how: str
    first_ns: int
    end_ns: int


class Gateway(Protocol):
    """The side of the gateway. It sends requests with `Run.send`."""

    def arrived(self, run: "Run", asked: Asked, now_ns: int) -> None: ...

    def first_token(self, run: "Run", asked: Asked, replica: int, now_ns: int) -> None: ...

    def ended(self, run: "Run", asked: Asked, replica: int, now_ns: int) -> None: ...

    def broke(self, run: "Run", asked: Asked, replica: int, now_ns: int) -> None:
        """A replica died with this request, whose client had nothing of the answer yet."""
        ...

    def ticked(self, run: "Run", now_ns: int) -> None:
        """A second has passed."""
        ...


class Failure(NamedTuple):
    """An engine dies with all its requests and its cache, and is back after a while."""

    at_ns: int
    replica: int
    back_after_ns: int


class Run:
    """One run. `ready` are the numbers of the engines that may get requests, in order."""

    def __init__(self, gateway: Gateway, replicas: int, settings: EngineSettings) -> None:
        self.gateway = gateway
        self.settings = settings
        self.engines = [Engine(settings) for _ in range(replicas)]
        self.ready = list(range(replicas))
        self.outcomes: dict[int, Outcome] = {}
        self.loads: list[int] = [0] * replicas
        self.hit_tokens = 0
        self.asked_tokens = 0
        self._first_ns: dict[int, int] = {}
        self._at: dict[int, tuple[int, Asked]] = {}
        self._queue: list[tuple[int, int, str, object]] = []
        self._number = 0
        self._planned: list[int | None] = [None] * replicas

    def run(
        self,
        arrivals: Sequence[Asked],
        failures: Sequence[Failure] = (),
        longest_ns: int = LONGEST_NS,
    ) -> None:
        """Run until every request has an outcome, or until `longest_ns` after the last arrival.

        A request without an outcome is lost.
        """
        until_ns = arrivals[-1].at_ns + longest_ns
        for asked in arrivals:
            self._push(asked.at_ns, "arrival", asked)
        for failure in failures:
            self._push(failure.at_ns, "failure", failure)
        self._push(TICK_NS, "tick", None)
        while len(self.outcomes) < len(arrivals):
            now_ns, _, kind, what = heapq.heappop(self._queue)
            if now_ns > until_ns:
                break
            self._handle(now_ns, kind, what)
        for engine in self.engines:
            self._count(engine)

    def _handle(self, now_ns: int, kind: str, what: object) -> None:
        if kind == "arrival":
            assert isinstance(what, Asked)
            self.gateway.arrived(self, what, now_ns)
        elif kind == "failure":
            assert isinstance(what, Failure)
            self._fail(what)
        elif kind == "tick":
            self.gateway.ticked(self, now_ns)
            self._push(now_ns + TICK_NS, "tick", None)
        else:
            assert isinstance(what, int)
            if kind == "back":
                self.start(what, now_ns)
            elif self._planned[what] == now_ns:
                self._planned[what] = None
                self.engines[what].advance(now_ns)
                self._take_events(what)
                self._wake(what)

    def send(self, asked: Asked, replica: int, now_ns: int) -> None:
        """Send a request to an engine."""
        assert replica in self.ready, f"engine {replica} is not ready"
        self._at[asked.name] = replica, asked
        self.loads[replica] += 1
        self.engines[replica].submit(asked, now_ns)
        self._take_events(replica)
        self._wake(replica)

    def refuse(self, asked: Asked, now_ns: int) -> None:
        """End a request without an answer, with a reason for its client."""
        self.outcomes[asked.name] = Outcome(REFUSED, 0, now_ns)

    def start(self, replica: int, now_ns: int) -> None:
        """An engine, new or back, may get requests from now on."""
        while len(self.engines) <= replica:
            self.engines.append(Engine(self.settings))
            self.loads.append(0)
            self._planned.append(None)
        self.ready = sorted([*self.ready, replica])
        self.gateway.ticked(self, now_ns)

    def stop_sending(self, replica: int) -> None:
        """Drain an engine: it gets no more requests and ends those it has."""
        self.ready.remove(replica)

    def after(self, delay_ns: int, replica: int, now_ns: int) -> None:
        """Start an engine after a while."""
        self._push(now_ns + delay_ns, "back", replica)

    def _fail(self, failure: Failure) -> None:
        replica, now_ns = failure.replica, failure.at_ns
        self.engines[replica].advance(now_ns)
        self._take_events(replica)
        if replica in self.ready:
            self.ready.remove(replica)
        self._count(self.engines[replica])
        self.engines[replica] = Engine(self.settings)
        self._planned[replica] = None
        hit = [asked for where, asked in self._at.values() if where == replica]
        self._push(now_ns + failure.back_after_ns, "back", replica)
        for asked in hit:
            del self._at[asked.name]
            if first_ns := self._first_ns.get(asked.name, 0):
                self.outcomes[asked.name] = Outcome(BROKEN, first_ns, now_ns)
                self.gateway.ended(self, asked, replica, now_ns)
            else:
                self.gateway.broke(self, asked, replica, now_ns)

    def _take_events(self, replica: int) -> None:
        """Hand the engine's events on; the gateway may send more meanwhile."""
        engine = self.engines[replica]
        events, engine.events = engine.events, []
        for at_ns, kind, asked in events:
            if kind == FIRST:
                self._first_ns[asked.name] = at_ns
                self.gateway.first_token(self, asked, replica, at_ns)
            else:
                del self._at[asked.name]
                first_ns = self._first_ns[asked.name]
                self.outcomes[asked.name] = Outcome(ANSWERED, first_ns, at_ns)
                self.gateway.ended(self, asked, replica, at_ns)

    def _wake(self, replica: int) -> None:
        next_ns = self.engines[replica].next_ns()
        if next_ns is not None and next_ns != self._planned[replica]:
            self._planned[replica] = next_ns
            self._push(next_ns, "engine", replica)

    def _push(self, at_ns: int, kind: str, what: object) -> None:
        self._number += 1
        heapq.heappush(self._queue, (at_ns, self._number, kind, what))

    def _count(self, engine: Engine) -> None:
        self.hit_tokens += engine.hit_tokens
        self.asked_tokens += engine.asked_tokens
