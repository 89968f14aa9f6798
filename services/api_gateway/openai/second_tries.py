"""The second tries of one model's requests: which are allowed, and how they are counted.

Tests: tests/integration/test_openai_hedges.py.
"""

from typing import TYPE_CHECKING

from libs.common.state.cluster import Endpoint
from services.api_gateway.openai.model_request import Request
from services.api_gateway.serving.hedging import Hedging
from services.api_gateway.serving.loads import Sent
from services.api_gateway.serving.retry_budget import RetryBudget

if TYPE_CHECKING:
    from services.api_gateway.openai.model_queue import ModelQueue


class SecondTries:
    """The second tries of one queue.

    `hedging` learns from all answers. `has_others`: more than one replica was ready at the last
    request.
    """

    def __init__(self, queue: "ModelQueue") -> None:
        self.queue = queue
        self.budget = RetryBudget(queue.gateway.settings.model_retry_percent)
        self.hedging = Hedging()
        self.has_others = False
        # What `OpenRequests` needs of each second try.
        self._begun: dict[int, int] = {}

    def may_retry(self) -> bool:
        """Return whether one more try at a replica is within the budget, and count it."""
        return self.budget.take(self.queue.now_ns())

    def after_ns(self, request: Request) -> int | None:
        """Return after which time a bound request is sent to a second replica; None for never."""
        sent = request.ticket.sent
        if not self.has_others or not self.budget.percent or sent is None:
            return None
        return self.hedging.after_ns(sent.is_streamed, sent.expected_ns)

    def begin(self, request: Request) -> Sent[Endpoint] | None:
        """Count the request at a second replica too, if one is free and the budget allows it."""
        queue, now_ns = self.queue, self.queue.now_ns()
        sent = queue.rules.second(request.ticket, queue.ready(), now_ns)
        if sent is None:
            return None
        if not self.budget.take(now_ns):
            queue.rules.withdraw_second(sent, now_ns)
            return None
        self._begun[id(sent)] = queue.gateway.queues.open.begin(sent.replica, now_ns)
        queue.gateway.telemetry.models.hedged(queue.name)
        return sent

    def second_answers(self, request: Request) -> None:
        """Note that the second replica answers first: the first one is at least as slow as that."""
        sent, now_ns = request.ticket.sent, self.queue.now_ns()
        assert sent is not None, "the request is not bound"
        self.hedging.began(sent.is_streamed, now_ns - sent.began_ns)
        self.queue.rules.first_token(request.ticket, now_ns)

    def moved_to_second(self, request: Request, sent: Sent[Endpoint]) -> None:
        """Count the request at its second replica alone, after `end` at the first one."""
        request.begun = self._begun.pop(id(sent))
        self.queue.rules.moved_to_second(request.ticket, sent, self.queue.now_ns())

    def withdraw(self, sent: Sent[Endpoint]) -> None:
        """Count a request at its second replica no longer."""
        queue = self.queue
        now_ns = queue.now_ns()
        queue.rules.withdraw_second(sent, now_ns)
        queue.gateway.queues.open.end(sent.replica, now_ns, self._begun.pop(id(sent)))
        queue.gateway.reporter.ended(sent.replica)
        queue.pump()
