"""Holds the waiting requests of one model, and binds each to a replica when that replica has room.

The order of the calls into admission, fairness and routing is decided here, so the gateway and the
simulated gateway of tests/sim agree. Pure. Tests: tests/unit/test_serving_late_binding.py.
"""

from collections import OrderedDict, deque
from collections.abc import Collection, Hashable, Sequence
from typing import Final, Generic, TypeVar

from services.api_gateway.serving.adapters import Residency, Wanted
from services.api_gateway.serving.admission import (
    Arrival,
    Bounds,
    Refused,
    Waiting,
    admit,
    retry_after_s,
)
from services.api_gateway.serving.fairness import OUTPUT_COST, SECOND_NS, Fairness, Flow
from services.api_gateway.serving.loads import Sent
from services.api_gateway.serving.routing import NO_SLOT, WAITS, Prompt, Route, Router
from services.api_gateway.serving.shared_turns import SharedTurns
from services.api_gateway.serving.shares import Shares

# The rate at which waiting tokens are taken is that of the last seconds.
RATE_S: Final = 10
# A request whose replica failed lets others pass for this time, if the untried replicas have no
# room. Then it blocks them, so that an untried replica drains: otherwise others refill it forever.
PASSED_NS: Final = SECOND_NS // 2
# A gateway whose tenants are ahead of those that wait elsewhere sends a request at least so often.
HELD_BACK_NS: Final = 2 * SECOND_NS
# A request that waits for one replica, or for a slot of its adapter, lets other tenants' pass.
PASSED: Final = (WAITS, NO_SLOT)

Replica = TypeVar("Replica", bound=Hashable)


class Ticket(Generic[Replica]):
    """One request: it waits until it is bound, then it is at a replica.

    `sent` is its place at the replica, None while it has none. `tried` are replicas that failed it,
    and `put_back_ns` is when it was put back last.
    `expires_ns` is when its time to wait is over; the time at replicas does not count.
    `input_charged` and `output_charged` are the tokens charged for the present try. `adapter` is
    the one that the replica needs for it.
    """

    __slots__ = (
        "adapter",
        "arrived_ns",
        "expires_ns",
        "flow",
        "input_charged",
        "is_streamed",
        "is_waiting",
        "output_charged",
        "prompt",
        "put_back_ns",
        "sent",
        "tried",
        "weight",
    )

    def __init__(
        self, flow: Flow, prompt: Prompt, weight: int = 1, is_streamed: bool = True
    ) -> None:
        self.flow = flow
        self.prompt = prompt
        self.weight = weight
        self.is_streamed = is_streamed
        self.arrived_ns = 0
        self.expires_ns = 0
        self.put_back_ns = 0
        self.is_waiting = False
        self.sent: Sent[Replica] | None = None
        self.tried: tuple[Replica, ...] = ()
        self.adapter: Wanted | None = None
        self.input_charged = 0
        self.output_charged = 0


class Rate:
    """Tokens per second, measured over the last RATE_S seconds."""

    def __init__(self) -> None:
        self._slots: deque[tuple[int, int]] = deque()

    def add(self, tokens: int, now_ns: int) -> None:
        slot = now_ns // SECOND_NS
        if self._slots and self._slots[-1][0] == slot:
            self._slots[-1] = slot, self._slots[-1][1] + tokens
        else:
            self._slots.append((slot, tokens))
            self._drop(slot)

    def per_s(self, now_ns: int) -> int:
        """Return the rate; 0 if nothing was taken of late."""
        slot = now_ns // SECOND_NS
        self._drop(slot)
        if not self._slots:
            return 0
        return sum(tokens for _, tokens in self._slots) // (slot - self._slots[0][0] + 1)

    def _drop(self, slot: int) -> None:
        while self._slots and self._slots[0][0] <= slot - RATE_S:
            self._slots.popleft()


class LateBinding(Generic[Replica]):
    """The requests of one model in one gateway.

    For each arrival call `at_once`; if that binds nothing, `arrive`, then `next` until it returns
    None. Call `next` again whenever something may have changed: a first token, an end, a replica,
    or time. `requests_of` counts each tenant's waiting requests; all models of a gateway share it.
    `skipped` are the flows that the last pass let others overtake.
    """

    def __init__(
        self,
        bounds: Bounds,
        router: Router[Replica],
        fairness: Fairness | None = None,
        requests_of: dict[str, int] | None = None,
    ) -> None:
        self.bounds = bounds
        self.router = router
        self.residency: Residency[Replica] = Residency()
        self.fairness = fairness if fairness is not None else Fairness()
        self.shares = Shares()
        self.shared = SharedTurns(self.fairness)
        self.rate = Rate()
        self.queues: dict[Flow, OrderedDict[Ticket[Replica], None]] = {}
        self.requests_of: dict[str, int] = requests_of if requests_of is not None else {}
        self.of_tenant: dict[str, int] = {}
        self.of_flow: dict[Flow, int] = {}
        self.waiting_tokens = 0
        self.waiting_requests = 0
        self.skipped: Collection[Flow] = ()
        self._sent_ns = 0

    def at_once(self, ticket: Ticket[Replica], replicas: Sequence[Replica], now_ns: int) -> bool:
        """Bind a request that arrives while nothing waits, and return whether a replica has room.

        The result is that of `arrive` and `next`, at less cost.
        """
        if self.waiting_requests or self._is_held_back(ticket.flow, now_ns):
            return False
        if ticket.adapter is None:
            route = self.router.route(ticket.prompt, replicas, now_ns)
        else:
            route = self._route_to(ticket.adapter, ticket.prompt, replicas, now_ns)
        if route.replica is None:
            return False
        ticket.arrived_ns = now_ns
        ticket.expires_ns = now_ns + self.bounds.wait_ns
        self.fairness.serve_at_once(ticket.flow, ticket.weight)
        self._send(ticket, route, now_ns)
        return True

    def arrive(self, ticket: Ticket[Replica], now_ns: int) -> Refused | None:
        """Let the request wait; return the refusal if it may not."""
        verdict = admit(
            Arrival(ticket.prompt.tokens, ticket.flow.band),
            self._waiting(ticket.flow, now_ns),
            self.bounds,
            now_ns,
        )
        if isinstance(verdict, Refused):
            return verdict
        ticket.arrived_ns = now_ns
        ticket.expires_ns = verdict.expires_ns
        self._queue(ticket)
        self.fairness.arrive(ticket.flow, ticket.weight, now_ns)
        return None

    def put_back(self, ticket: Ticket[Replica], now_ns: int) -> None:
        """Let a request wait again whose replica failed.

        It keeps its place before later ones, and what is left of its time to wait.
        """
        ticket.put_back_ns = now_ns
        self._queue(ticket)
        self.queues[ticket.flow].move_to_end(ticket, last=False)
        self.fairness.put_back(ticket.flow, ticket.weight, ticket.arrived_ns)

    def retry_after_s(self, flow: Flow, now_ns: int) -> int:
        """Return after how many seconds the requests ahead of the flow's next one are gone."""
        return retry_after_s(self._waiting(flow, now_ns))

    def next(
        self, replicas: Sequence[Replica], now_ns: int, skipped: set[Flow]
    ) -> Ticket[Replica] | None:
        """Bind the request whose turn it is, and return it; None if no more can be bound now.

        `skipped` is empty at first, and collects the flows whose first request waits for a replica
        of its own. A request whose replica failed waits so for PASSED_NS at most.
        """
        self.skipped = skipped
        while (flow := self.fairness.choose(now_ns, skipped=skipped)) is not None:
            if self._is_held_back(flow, now_ns):
                return None
            ticket = next(iter(self.queues[flow]))
            left = replicas
            if ticket.tried:
                left = [each for each in replicas if each not in ticket.tried] or replicas
            waited_ns = now_ns - self.fairness.arrived_ns(flow)
            if ticket.adapter is None:
                route = self.router.route(ticket.prompt, left, now_ns, waited_ns)
            else:
                route = self._route_to(ticket.adapter, ticket.prompt, left, now_ns, waited_ns)
            may_be_passed = len(left) < len(replicas) and now_ns < ticket.put_back_ns + PASSED_NS
            if route.why in PASSED or (route.replica is None and may_be_passed):
                skipped.add(flow)
                continue
            if route.replica is None:
                return None
            self.fairness.take(flow, now_ns)
            self._leave_queue(ticket)
            self._send(ticket, route, now_ns)
            return ticket
        return None

    def _route_to(
        self,
        adapter: Wanted,
        prompt: Prompt,
        replicas: Sequence[Replica],
        now_ns: int,
        waited_ns: int = 0,
    ) -> Route[Replica]:
        """Return the route of a request to an adapter: in the first group that has room for it."""
        loads, asked = self.router.loads, 0
        route: Route[Replica] = Route(None, NO_SLOT, prompt.tokens)
        for group in self.residency.groups(
            adapter, replicas, now_ns, lambda replica: loads.of(replica).is_avoided(now_ns)
        ):
            asked += len(group)
            route = self.router.route(prompt, group, now_ns, waited_ns)
            if route.replica is not None or route.why == WAITS:
                return route
        return route if asked == len(replicas) else route._replace(why=NO_SLOT)

    def _is_held_back(self, flow: Flow, now_ns: int) -> bool:
        """Return whether the flow waits for one at another gateway that is far behind it.

        Once in a while it goes nevertheless, so gateways with different counters do not wait for
        each other.
        """
        return (
            self.fairness.is_shared
            and now_ns - self._sent_ns < HELD_BACK_NS
            and self.fairness.is_ahead(flow)
        )

    def _send(self, ticket: Ticket[Replica], route: Route[Replica], now_ns: int) -> None:
        self._sent_ns = now_ns
        self.rate.add(ticket.prompt.tokens, now_ns)
        ticket.input_charged = ticket.output_charged = 0
        self._charge(ticket, route.miss, 0, now_ns)
        ticket.sent = self.router.send(ticket.prompt, route, now_ns, ticket.is_streamed)
        if ticket.adapter is not None:
            self.residency.begin(ticket.adapter, ticket.sent.replica)

    def withdraw(self, ticket: Ticket[Replica], now_ns: int) -> None:
        """Remove a waiting request, because its client left or its time is over."""
        self.fairness.take(ticket.flow, now_ns, ticket.arrived_ns)
        self._leave_queue(ticket)

    def first_token(self, ticket: Ticket[Replica], now_ns: int) -> None:
        """Note the first piece of a streamed answer."""
        if ticket.sent is not None and ticket.is_streamed:
            self.router.loads.first_token(ticket.sent, now_ns)

    def charge_output(self, ticket: Ticket[Replica], tokens: int, now_ns: int) -> None:
        """Charge so many more output tokens."""
        self._charge(ticket, 0, tokens, now_ns)

    def correct(
        self, ticket: Ticket[Replica], input_tokens: int, output_tokens: int, now_ns: int
    ) -> None:
        """Charge what the replica counted, instead of what was estimated.

        The part of the prompt that the replica's cache held stays free. Call it before `end`.
        """
        assert ticket.sent is not None, "the request is not bound"
        miss = input_tokens * ticket.sent.miss // max(1, ticket.prompt.tokens)
        self._charge(
            ticket, miss - ticket.input_charged, output_tokens - ticket.output_charged, now_ns
        )

    def second(
        self, ticket: Ticket[Replica], replicas: Sequence[Replica], now_ns: int
    ) -> Sent[Replica] | None:
        """Count the request at a second replica too; return its place there, None if none is free.

        The tenant is charged nothing for it, and nothing is taken from requests that wait. Call
        `moved_to_second` or `withdraw_second` in the end.
        """
        if self.waiting_requests or ticket.sent is None:
            return None
        used = (*ticket.tried, ticket.sent.replica)
        left = [each for each in replicas if each not in used and self.router.is_calm(each, now_ns)]
        prompt = ticket.prompt._replace(session=0)
        route = self.router.route(prompt, left, now_ns)
        if route.replica is None:
            return None
        return self.router.send(prompt, route, now_ns, ticket.is_streamed)

    def moved_to_second(self, ticket: Ticket[Replica], sent: Sent[Replica], now_ns: int) -> None:
        """Count the request at its second replica alone. Call it after `end` of the first try."""
        assert ticket.sent is None, "the first try has not ended"
        ticket.sent = sent
        self._charge(ticket, sent.miss - ticket.input_charged, -ticket.output_charged, now_ns)

    def withdraw_second(self, sent: Sent[Replica], now_ns: int) -> None:
        """Count the request at its second replica no longer, because the first one answers."""
        self.router.loads.end(sent, now_ns)

    def failed(self, ticket: Ticket[Replica], now_ns: int) -> None:
        """Note that the replica failed the request, so that it is avoided for a while."""
        assert ticket.sent is not None, "the request is not bound"
        self.router.loads.failed(ticket.sent, now_ns)

    def answered(self, ticket: Ticket[Replica]) -> None:
        """Note a complete answer without an error. Call it before `end`."""
        assert ticket.sent is not None, "the request is not bound"
        self.router.loads.answered(ticket.sent)

    def give_back(self, ticket: Ticket[Replica], now_ns: int) -> None:
        """Take back what the request was charged, because its tenant got nothing."""
        self._charge(ticket, -ticket.input_charged, -ticket.output_charged, now_ns)

    def end(self, ticket: Ticket[Replica], now_ns: int) -> None:
        """Count the request at its replica no longer; call it however the try ended."""
        assert ticket.sent is not None, "the request is not bound"
        self.router.loads.end(ticket.sent, now_ns)
        ticket.expires_ns += now_ns - ticket.sent.began_ns
        if ticket.adapter is not None:
            self.residency.end(ticket.adapter, ticket.sent.replica)
        ticket.sent = None

    def refresh(self, replicas: Sequence[Replica], now_ns: int) -> None:
        """Forget replicas that are gone, and end a span of the shares.

        Call it every few seconds.
        """
        self.router.keep_only(replicas)
        self.residency.keep_only(replicas, now_ns)
        waiting = {flow: next(iter(queue)).weight for flow, queue in self.queues.items()}
        self.shares.refresh(waiting, now_ns)

    def _charge(self, ticket: Ticket[Replica], inputs: int, outputs: int, now_ns: int) -> None:
        if not inputs and not outputs:
            return
        ticket.input_charged += inputs
        ticket.output_charged += outputs
        self.fairness.charge(ticket.flow, inputs, outputs, now_ns)
        tokens = inputs + OUTPUT_COST * outputs
        self.shares.charge(ticket.flow, tokens)
        self.shared.charged(ticket.flow, ticket.weight, tokens)

    def _waiting(self, flow: Flow, now_ns: int) -> Waiting:
        of_tenant = self.of_tenant.get(flow.tenant, 0)
        ahead = sum(tokens for each, tokens in self.of_flow.items() if each.band <= flow.band)
        return Waiting(
            of_tenant=of_tenant,
            of_model=self.waiting_tokens,
            ahead=ahead,
            tokens_per_s=self.rate.per_s(now_ns),
            tenants=len(self.of_tenant) + (flow.tenant not in self.of_tenant),
            tenant_requests=self.requests_of.get(flow.tenant, 0),
        )

    def _queue(self, ticket: Ticket[Replica]) -> None:
        ticket.is_waiting = True
        self.queues.setdefault(ticket.flow, OrderedDict())[ticket] = None
        self._count(ticket, 1)

    def _leave_queue(self, ticket: Ticket[Replica]) -> None:
        ticket.is_waiting = False
        queue = self.queues[ticket.flow]
        del queue[ticket]
        if not queue:
            del self.queues[ticket.flow]
        self._count(ticket, -1)

    def _count(self, ticket: Ticket[Replica], sign: int) -> None:
        tokens = sign * ticket.prompt.tokens
        self.waiting_requests += sign
        self.waiting_tokens += tokens
        flow = ticket.flow
        if requests := self.requests_of.pop(flow.tenant, 0) + sign:
            self.requests_of[flow.tenant] = requests
        if of_tenant := self.of_tenant.pop(flow.tenant, 0) + tokens:
            self.of_tenant[flow.tenant] = of_tenant
        if of_flow := self.of_flow.pop(flow, 0) + tokens:
            self.of_flow[flow] = of_flow
