"""The queue of one model: each request waits until a replica has room.

The decisions are those of services/api_gateway/serving; this file has the futures, the timers and
the answers to requests that may not wait. A request that finds room at once never sleeps. Tests:
tests/integration/test_openai_queues.py and test_openai_routing.py.
"""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from libs.common.messages.model_turns import Turn
from libs.common.messages.outstanding import ModelDemand
from libs.common.model import TenantId
from libs.common.state.cluster import Endpoint
from libs.common.state.tenant import Tenant
from services.api_gateway.openai import queue_errors
from services.api_gateway.openai.adapters import ModelAdapters
from services.api_gateway.openai.call import CLIENT_ERROR, Call
from services.api_gateway.openai.errors import ApiError, gateway_stopping
from services.api_gateway.openai.events import Usage
from services.api_gateway.openai.guard import Guard
from services.api_gateway.openai.images import NO_IMAGES, images_of
from services.api_gateway.openai.latencies import Latencies
from services.api_gateway.openai.model_request import Request
from services.api_gateway.openai.order_headers import requested_order
from services.api_gateway.openai.queue_settings import bounds, router
from services.api_gateway.openai.routes import CHAT
from services.api_gateway.openai.second_tries import SecondTries
from services.api_gateway.openai.waking import Waking
from services.api_gateway.serving.fairness import SECOND_NS, Flow
from services.api_gateway.serving.late_binding import LateBinding, Ticket
from services.api_gateway.serving.prefix_index import chain
from services.api_gateway.serving.prefix_space import PrefixSpace
from services.api_gateway.serving.routing import MS_NS, Prompt
from services.api_gateway.serving.token_estimate import TokenEstimate, script_of

if TYPE_CHECKING:
    from services.api_gateway.gateway import Gateway

# While requests wait, the queue asks the rules again at least this often. A replica may have become
# ready meanwhile, or be avoided no longer, or a request may have waited long enough for its holder.
TICK_S: Final = 0.1
# The guard of a waiting request allows so much more time than the request may wait.
WAIT_MORE_S: Final = 5.0
# The output tokens of a stream are charged each time that so many have come.
PORTION: Final = 64
# The weight of a tenant that has no settings.
WEIGHT: Final = Tenant(TenantId("")).weight


class ModelQueue:
    """The queue of one model."""

    def __init__(
        self, gateway: "Gateway", name: str, requests_of: dict[str, int], space: PrefixSpace
    ) -> None:
        settings = gateway.settings
        self.gateway = gateway
        self.name = name
        self.estimate = TokenEstimate()
        self.latencies = Latencies()
        self.rules: LateBinding[Endpoint] = LateBinding(
            bounds(settings), router(settings, space), requests_of=requests_of
        )
        self.tries = SecondTries(self)
        self.waking = Waking(self)
        self.adapters = ModelAdapters(self)
        self._waiting: dict[Ticket[Endpoint], Request] = {}
        self._tick: asyncio.TimerHandle | None = None
        # When a request last began or ended; None before the first one.
        self._used_ns: int | None = None

    def request(self, call: Call, tenant: str) -> Request:
        """Return the request of a call, with its estimated tokens.

        Raises ApiError: 503 if no replica is ready, 400 if a header is wrong.
        """
        if not self.ready() and not self._wakes():
            raise self.none_ready()
        text = call.text()
        has_images = call.path == CHAT and b'"image_url"' in text
        images = images_of(bytes(call.fields.messages)) if has_images else NO_IMAGES
        size, script = max(0, len(text) - images.body_bytes), script_of(text)
        session, band = requested_order(call.scope["header"], tenant)
        salt = f"{tenant}\0{call.adapter}" if call.adapter else tenant
        prompt = Prompt(
            tokens=self.estimate.tokens(size, script) + images.tokens,
            size=max(1, len(text)),
            hashes=chain(salt.encode(), text),
            session=session,
            tenant=tenant,
        )
        self.tries.budget.request()
        self._used_ns = self.now_ns()
        known = self.gateway.cluster.tenants.get(TenantId(tenant))
        weight = max(1, known.weight) if known is not None else WEIGHT
        ticket: Ticket[Endpoint] = Ticket(
            Flow(band, tenant), prompt, weight, is_streamed=call.fields.streams
        )
        if call.adapter:
            ticket.adapter = self.adapters.wanted(call)
        request = Request(ticket, 0 if images.tokens else size, script)
        request.tell = call.comment if call.fields.streams and not self.ready() else None
        return request

    async def bind(self, request: Request, guard: Guard) -> Endpoint:
        """Wait for a replica that has room, and count the request there.

        Raises ApiError: 503 if no replica is ready or the time is over, 429 if too much waits.
        """
        ready, now_ns = self.ready(), self.now_ns()
        if not ready and not self._wakes():
            raise self.none_ready()
        ticket = request.ticket
        self.tries.has_others = len(ready) > 1
        if not request.tries and self.rules.at_once(ticket, ready, now_ns):
            assert ticket.sent is not None, "a bound request has a replica"
            request.begun = self.gateway.queues.open.begin(ticket.sent.replica, now_ns)
        else:
            self._enter(request, ready, now_ns)
        request.tries += 1
        if ticket.sent is None:
            await self._wait(request, guard)
        assert ticket.sent is not None, "a bound request has a replica"
        return ticket.sent.replica

    def _enter(self, request: Request, ready: Sequence[Endpoint], now_ns: int) -> None:
        if self.gateway.queues.is_stopping:
            raise gateway_stopping()
        if not ready:
            self.waking.begin(request, not self._waiting, now_ns)
        if request.tries:
            self.rules.put_back(request.ticket, now_ns)
        elif (refused := self.rules.arrive(request.ticket, now_ns)) is not None:
            raise queue_errors.refusal(self.name, self.rules, request.ticket.flow, refused)
        self._waiting[request.ticket] = request
        self._pump(ready, now_ns)

    def _wakes(self) -> bool:
        """Return whether requests wait while no replica is ready: if the scheduler adds one."""
        return self.gateway.models.scales(self.name)

    async def _wait(self, request: Request, guard: Guard) -> None:
        loop, patience_s = asyncio.get_running_loop(), guard.patience_s
        wait_s = (request.ticket.expires_ns - self.now_ns()) / SECOND_NS
        request.future = loop.create_future()
        timer = loop.call_later(wait_s, self._expire, request)
        guard.heard(wait_s + WAIT_MORE_S)
        try:
            is_told = request.tell is not None and not self.ready()
            error = await (self.waking.told(request) if is_told else request.future)
        except asyncio.CancelledError:
            self._client_left(request)
            raise
        finally:
            timer.cancel()
            request.future = request.tell = None
        if error is not None:
            raise error
        guard.heard(patience_s)

    def has_untried(self, request: Request) -> bool:
        """Return whether a ready replica has not been tried."""
        return any(endpoint not in request.ticket.tried for endpoint in self.ready())

    def heard(self, request: Request, endpoint: Endpoint, events: int) -> None:
        """Note a piece of the replica's answer with so many events, about a token each.

        Without an event it shows only that the replica is alive.
        """
        ticket, sent = request.ticket, request.ticket.sent
        self.gateway.reporter.answered(endpoint)
        if events and sent is not None and sent.is_streamed and not sent.started:
            now_ns = self.now_ns()
            self.rules.first_token(ticket, now_ns)
            self.tries.hedging.began(True, now_ns - sent.began_ns)
            if not request.has_begun:  # a stream that is continued began long ago
                self.latencies.first_token(now_ns - ticket.arrived_ns, now_ns)
                request.has_begun = True
            request.first_ns, request.events = now_ns, 0
            self.pump()
        request.uncharged += events
        request.events += events
        if request.uncharged >= PORTION:
            self._charge(request)

    def failed(self, request: Request, is_broken: bool = False, is_tried: bool = True) -> None:
        """Note that the replica failed the request.

        `is_broken`: the client had a part of the answer. `is_tried`: the replica saw the request,
        or accepts no connection; it is avoided, and not tried again for this request.
        """
        ticket, now_ns = request.ticket, self.now_ns()
        assert ticket.sent is not None, "the request is not bound"
        if not is_broken:
            request.uncharged = 0
            self.rules.give_back(ticket, now_ns)
        if is_tried:
            self.rules.failed(ticket, now_ns)
            ticket.tried = (*ticket.tried, ticket.sent.replica)

    def end(self, request: Request, call: Call | None = None) -> None:
        """Count the request no longer at its replica; learn from the usage of its answer."""
        ticket, now_ns = request.ticket, self.now_ns()
        assert ticket.sent is not None, "the request is not bound"
        self._used_ns, endpoint = now_ns, ticket.sent.replica
        usage = call.usage if call is not None else None
        if request.uncharged:
            self._charge(request)
        if usage is not None and usage.inputs > 0:
            self.rules.correct(ticket, usage.inputs, usage.outputs, now_ns)
            self.estimate.learn(request.size, request.script, usage.inputs)
        elif call is not None and call.status >= CLIENT_ERROR:
            # An error answer without usage costs its tenant nothing.
            self.rules.give_back(ticket, now_ns)
        if call is not None and 0 < call.status < CLIENT_ERROR and not call.streaming:
            self.rules.answered(ticket)
            self.tries.hedging.began(False, now_ns - ticket.sent.began_ns)
        if request.first_ns:
            self.latencies.ended(now_ns - request.first_ns, request.events - 1, now_ns)
            request.first_ns = 0
        self.rules.end(ticket, now_ns)
        busy_ns = self.gateway.queues.open.end(endpoint, now_ns, request.begun)
        if call is not None:
            counted = None if call.moves_on else usage or _estimated(request, call)
            self.gateway.usage.note(call, endpoint, busy_ns, counted)
        self.gateway.reporter.ended(endpoint)
        self.pump()

    def pump(self) -> None:
        """Bind the requests for which there is room now."""
        if self._waiting:
            self._pump(self.ready(), self.now_ns())

    def refresh(self) -> None:
        """Do what is due every few seconds."""
        self.rules.refresh(self.ready(), self.now_ns())
        self.waking.refresh(is_ready=bool(self.ready()), is_waited_for=bool(self._waiting))
        self.adapters.refresh()

    def share_turns(self) -> list[Turn]:
        """Return what other gateways need to know of this model's tenants."""
        self.rules.shared.settle(self.now_ns())
        return self.rules.shared.report(self.rules.skipped)

    def hear_turns(self, sender: str, turns: list[Turn]) -> None:
        """Take over what another gateway charged, and which tenants wait there."""
        self.rules.shared.heard(sender, turns, self.now_ns())
        self.pump()

    @property
    def is_idle(self) -> bool:
        """True if no request waits or is at a replica."""
        loads = self.rules.router.loads
        return not self._waiting and not any(loads.of(each).outstanding for each in loads.known())

    def demand(self) -> ModelDemand:
        """Return what the scheduler hears of this model's requests."""
        loads, now_ns = self.rules.router.loads, self.now_ns()
        first_us, per_token_us = self.latencies.p90_us(now_ns)
        return ModelDemand(
            outstanding=sum(loads.of(each).outstanding for each in loads.known()),
            waiting=self.rules.waiting_requests or int(self.waking.is_asked(now_ns)),
            waiting_tokens=self.rules.waiting_tokens,
            first_token_p90_us=first_us,
            per_token_p90_us=per_token_us,
            tokens_per_s=self.rules.rate.per_s(now_ns),
            idle_ms=None if self._used_ns is None else (now_ns - self._used_ns) // MS_NS,
        )

    def refuse_all(self, error: ApiError) -> None:
        """End the wait of all requests, because the model is gone or the gateway stops."""
        for request in list(self._waiting.values()):
            self._give_up(request, error)

    def none_ready(self) -> ApiError:
        """Return the error for a model without a ready replica."""
        return queue_errors.none_ready(self.name, self.gateway.models.why_not(self.name))

    def _pump(self, ready: Sequence[Endpoint], now_ns: int) -> None:
        skipped: set[Flow] = set()
        if ready:
            self.waking.times.woken(now_ns)
        while self._waiting and (ticket := self.rules.next(ready, now_ns, skipped)) is not None:
            assert ticket.sent is not None, "a bound request has a replica"
            request = self._waiting.pop(ticket)
            request.begun = self.gateway.queues.open.begin(ticket.sent.replica, now_ns)
            request.answer(None)
        if self._waiting:
            self._wake_later(now_ns)

    def _expire(self, request: Request) -> None:
        if request.ticket.is_waiting:
            self._give_up(request, self._too_late(request))
            self.pump()

    def _too_late(self, request: Request) -> ApiError:
        if not self.ready():
            retry_after_s = self.waking.retry_after_s(self.now_ns())
            why = self.gateway.models.why_not(self.name)
            return queue_errors.none_ready(self.name, why, retry_after_s)
        retry_after_s = self.rules.retry_after_s(request.ticket.flow, self.now_ns())
        waited_s = self.gateway.settings.model_wait_ms / 1_000
        return queue_errors.too_late(self.name, waited_s, retry_after_s)

    def _give_up(self, request: Request, error: ApiError) -> None:
        del self._waiting[request.ticket]
        self.rules.withdraw(request.ticket, self.now_ns())
        request.answer(error)

    def _client_left(self, request: Request) -> None:
        """Take out a request whose client left, also if it has just been bound."""
        if request.ticket.is_waiting:
            del self._waiting[request.ticket]
            self.rules.withdraw(request.ticket, self.now_ns())
            self.pump()
        elif request.ticket.sent is not None:
            self.rules.give_back(request.ticket, self.now_ns())
            self.end(request)

    def _charge(self, request: Request) -> None:
        self.rules.charge_output(request.ticket, request.uncharged, self.now_ns())
        request.uncharged = 0

    def _wake_later(self, now_ns: int) -> None:
        """Ask the rules again when something may change by itself."""
        loop, due_ns = asyncio.get_running_loop(), self.rules.router.loads.next_ns()
        due_s = loop.time() + TICK_S
        if due_ns is not None:
            due_s = min(due_s, loop.time() + max(0, due_ns - now_ns) / SECOND_NS)
        if self._tick is not None:
            if self._tick.when() <= due_s:
                return
            self._tick.cancel()
        self._tick = loop.call_at(due_s, self._wake)

    def _wake(self) -> None:
        self._tick = None
        if self.gateway.models.get(self.name) is None:
            self.refuse_all(self.none_ready())
        self.pump()

    def ready(self) -> Sequence[Endpoint]:
        """Return the replicas that requests may go to."""
        return self.gateway.models.ready(self.name)

    def now_ns(self) -> int:
        """Return the time by which the rules decide."""
        return self.gateway.clock.boot_ns()


def _estimated(request: Request, call: Call) -> Usage | None:
    """Return the estimated use of a text stream that did not tell its usage, or broke before."""
    if not (call.streaming and call.route.bound and request.events):
        return None
    continued = call.continuation.tokens if call.continuation is not None else 0
    return Usage(request.ticket.prompt.tokens, max(request.events, continued))
