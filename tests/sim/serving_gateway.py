"""The gateway of a simulated serving cluster with Muster's rules: late binding, fairness by tokens,
routing by prefix, and admission in tokens.

The rules are the files of services/api_gateway/serving; here is only what a gateway does around
them: queues, and the calls in the right order.
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from services.api_gateway.serving.admission import Admitted, Arrival, Bounds, Waiting, admit
from services.api_gateway.serving.fairness import Fairness, Flow
from services.api_gateway.serving.loads import Sent
from services.api_gateway.serving.prefix_index import PrefixIndex
from services.api_gateway.serving.routing import WAITS, Prompt, Router
from tests.sim.engine import Asked
from tests.sim.serving import SECOND_NS, Run

# English text: four bytes per token.
TOKEN_BYTES: Final = 4
BOUNDS: Final = Bounds(
    tenant_tokens=4_000_000,
    model_tokens=16_000_000,
    lowest_tokens=8_000_000,
    bands=2,
    wait_ns=600 * SECOND_NS,
)


class MusterGateway:
    """A gateway with Muster's rules. `hashes` returns the block hashes of a request's prompt."""

    def __init__(
        self,
        hashes: Callable[[Asked], tuple[int, ...]],
        weights: Mapping[str, int] | None = None,
        router: Router[int] | None = None,
        fairness: Fairness | None = None,
        bounds: Bounds = BOUNDS,
    ) -> None:
        self.hashes = hashes
        self.weights = weights if weights is not None else {}
        self.router: Router[int] = router if router is not None else Router(PrefixIndex())
        self.fairness = fairness if fairness is not None else Fairness()
        self.bounds = bounds
        self.queues: dict[Flow, deque[tuple[Asked, int]]] = {}
        self.of_tenant: dict[str, int] = {}
        self.waiting_tokens = 0
        self.retried = 0
        self._sent: dict[int, Sent[int]] = {}
        self._charged: dict[int, int] = {}
        self._running: dict[int, tuple[Asked, int]] = {}

    def arrived(self, run: Run, asked: Asked, now_ns: int) -> None:
        waiting = Waiting(
            of_tenant=self.of_tenant.get(asked.tenant, 0),
            of_model=self.waiting_tokens,
            ahead=self.waiting_tokens,
            tokens_per_s=0,
            tenants=len({asked.tenant, *self.of_tenant}),
        )
        verdict = admit(Arrival(asked.input_tokens, asked.band), waiting, self.bounds, now_ns)
        if not isinstance(verdict, Admitted):
            run.refuse(asked, now_ns)
            return
        self._queue(asked, verdict.expires_ns, now_ns)
        self._pump(run, now_ns)

    def first_token(self, run: Run, asked: Asked, replica: int, now_ns: int) -> None:
        self.router.loads.first_token(self._sent[asked.name], now_ns)
        self._pump(run, now_ns)

    def ended(self, run: Run, asked: Asked, replica: int, now_ns: int) -> None:
        self.router.loads.end(self._sent.pop(asked.name), now_ns)
        self._charge_output(run, asked, replica, now_ns, run.outcomes[asked.name].how != "answered")
        del self._running[asked.name], self._charged[asked.name]
        self._pump(run, now_ns)

    def broke(self, run: Run, asked: Asked, replica: int, now_ns: int) -> None:
        """Try another replica: the client has nothing of the answer yet."""
        self.router.loads.end(self._sent.pop(asked.name), now_ns)
        self.router.forget(replica)
        del self._running[asked.name], self._charged[asked.name]
        self.retried += 1
        self._queue(asked, now_ns + self.bounds.wait_ns, now_ns)
        self._pump(run, now_ns)

    def ticked(self, run: Run, now_ns: int) -> None:
        for asked, replica in list(self._running.values()):
            self._charge_output(run, asked, replica, now_ns, True)
        self._expire(run, now_ns)
        self._pump(run, now_ns)

    def _queue(self, asked: Asked, expires_ns: int, now_ns: int) -> None:
        flow = Flow(asked.band, asked.tenant)
        self.queues.setdefault(flow, deque()).append((asked, expires_ns))
        self.fairness.arrive(flow, self.weights.get(asked.tenant, 1), now_ns)
        self._count(asked, 1)

    def _count(self, asked: Asked, sign: int) -> None:
        self.waiting_tokens += sign * asked.input_tokens
        tokens = self.of_tenant.pop(asked.tenant, 0) + sign * asked.input_tokens
        if tokens:
            self.of_tenant[asked.tenant] = tokens

    def _pump(self, run: Run, now_ns: int) -> None:
        """Send waiting requests while a replica has room."""
        skipped: list[Flow] = []
        while (flow := self.fairness.choose(now_ns, skipped=skipped)) is not None:
            asked, _ = self.queues[flow][0]
            hashes = self.hashes(asked)
            size = TOKEN_BYTES * asked.input_tokens
            prompt = Prompt(asked.input_tokens, size, hashes, asked.session)
            waited_ns = now_ns - self.fairness.arrived_ns(flow)
            route = self.router.route(prompt, run.ready, now_ns, waited_ns)
            if route.why == WAITS:
                skipped.append(flow)
                continue
            if route.replica is None:
                return
            self.queues[flow].popleft()
            self.fairness.take(flow, now_ns)
            self._count(asked, -1)
            self.fairness.charge(flow, route.miss, 0, now_ns)
            self._sent[asked.name] = self.router.send(prompt, route, now_ns)
            self._charged[asked.name] = 0
            self._running[asked.name] = asked, route.replica
            run.send(asked, route.replica, now_ns)

    def _charge_output(
        self, run: Run, asked: Asked, replica: int, now_ns: int, is_open: bool
    ) -> None:
        """Charge the output since the last time; the whole of it when the request has ended."""
        tokens = run.engines[replica].tokens_of(asked) if is_open else asked.output_tokens
        more = max(0, tokens - self._charged[asked.name])
        self._charged[asked.name] += more
        self.fairness.charge(Flow(asked.band, asked.tenant), 0, more, now_ns)

    def _expire(self, run: Run, now_ns: int) -> None:
        for flow, queue in self.queues.items():
            while queue and queue[0][1] <= now_ns:
                asked, _ = queue.popleft()
                self.fairness.take(flow, now_ns)
                self._count(asked, -1)
                run.refuse(asked, now_ns)
