"""The gateway of a simulated serving cluster with Muster's rules: late binding, fairness by tokens,
routing by prefix, and admission in tokens.

The rules are the files of services/api_gateway/serving, and `LateBinding` calls them in the order
of the real gateway; here is only what a gateway does around them.
"""

from collections.abc import Callable, Mapping
from typing import Final

from services.api_gateway.serving.admission import Bounds
from services.api_gateway.serving.fairness import Fairness, Flow
from services.api_gateway.serving.late_binding import LateBinding, Ticket
from services.api_gateway.serving.prefix_index import PrefixIndex
from services.api_gateway.serving.routing import Prompt, Router
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
        self.rules: LateBinding[int] = LateBinding(bounds, self.router, fairness)
        self.retried = 0
        self._waiting: dict[int, Asked] = {}
        self._tickets: dict[int, Ticket[int]] = {}
        self._running: dict[int, tuple[Asked, int]] = {}

    @property
    def waiting_tokens(self) -> int:
        return self.rules.waiting_tokens

    def arrived(self, run: Run, asked: Asked, now_ns: int) -> None:
        ticket = self._ticket(asked)
        self._tickets[asked.name] = ticket
        if self.rules.at_once(ticket, run.ready, now_ns):
            self._send(run, asked, ticket, now_ns)
        elif self.rules.arrive(ticket, now_ns) is None:
            self._waiting[id(ticket)] = asked
            self._pump(run, now_ns)
        else:
            del self._tickets[asked.name]
            run.refuse(asked, now_ns)

    def _ticket(self, asked: Asked) -> Ticket[int]:
        size = TOKEN_BYTES * asked.input_tokens
        prompt = Prompt(asked.input_tokens, size, self.hashes(asked), asked.session)
        return Ticket(Flow(asked.band, asked.tenant), prompt, self.weights.get(asked.tenant, 1))

    def first_token(self, run: Run, asked: Asked, replica: int, now_ns: int) -> None:
        self.rules.first_token(self._tickets[asked.name], now_ns)
        self._pump(run, now_ns)

    def ended(self, run: Run, asked: Asked, replica: int, now_ns: int) -> None:
        self._charge_output(run, asked, replica, now_ns, run.outcomes[asked.name].how != "answered")
        self.rules.end(self._tickets.pop(asked.name), now_ns)
        del self._running[asked.name]
        self._pump(run, now_ns)

    def broke(self, run: Run, asked: Asked, replica: int, now_ns: int) -> None:
        """Try another replica: the client has nothing of the answer yet."""
        ticket = self._tickets[asked.name]
        self.rules.give_back(ticket, now_ns)
        self.rules.end(ticket, now_ns)
        self.router.forget(replica)
        del self._running[asked.name]
        self.retried += 1
        self.rules.put_back(ticket, now_ns)
        self._waiting[id(ticket)] = asked
        self._pump(run, now_ns)

    def ticked(self, run: Run, now_ns: int) -> None:
        for asked, replica in list(self._running.values()):
            self._charge_output(run, asked, replica, now_ns, True)
        self._expire(run, now_ns)
        self._pump(run, now_ns)

    def _pump(self, run: Run, now_ns: int) -> None:
        """Send waiting requests while a replica has room."""
        skipped: set[Flow] = set()
        while (ticket := self.rules.next(run.ready, now_ns, skipped)) is not None:
            self._send(run, self._waiting.pop(id(ticket)), ticket, now_ns)

    def _send(self, run: Run, asked: Asked, ticket: Ticket[int], now_ns: int) -> None:
        assert ticket.sent is not None, "a bound request has a replica"
        self._running[asked.name] = asked, ticket.sent.replica
        run.send(asked, ticket.sent.replica, now_ns)

    def _charge_output(
        self, run: Run, asked: Asked, replica: int, now_ns: int, is_open: bool
    ) -> None:
        """Charge the output since the last time; the whole of it when the request has ended."""
        ticket = self._tickets[asked.name]
        tokens = run.engines[replica].tokens_of(asked) if is_open else asked.output_tokens
        self.rules.charge_output(ticket, max(0, tokens - ticket.output_charged), now_ns)

    def _expire(self, run: Run, now_ns: int) -> None:
        waiting = [ticket for queue in self.rules.queues.values() for ticket in queue]
        for ticket in waiting:
            if ticket.expires_ns <= now_ns:
                self.rules.withdraw(ticket, now_ns)
                asked = self._waiting.pop(id(ticket))
                del self._tickets[asked.name]
                run.refuse(asked, now_ns)
