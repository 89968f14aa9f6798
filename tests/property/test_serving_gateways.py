"""Two gateways that tell each other their charges are about as fair as one gateway.

Both send to the same engines, which work first come, first served. Their messages come every fifth
of a second. The twin is one gateway that gets all requests.
"""

from collections import deque
from random import Random
from typing import Final, NamedTuple

import pytest

from services.api_gateway.serving.admission import Bounds
from services.api_gateway.serving.fairness import SECOND_NS, Flow
from services.api_gateway.serving.late_binding import LateBinding, Ticket
from services.api_gateway.serving.routing import Prompt, Router

STEP_NS: Final = 50_000_000
TOLD_STEPS: Final = 4
SECONDS: Final = 30
# The first seconds, in which queues fill, are not counted.
WARM_S: Final = 5
TOKENS_PER_S: Final = 16_000
REPLICAS: Final = ("r", "s")
# Requests that each client keeps waiting, so that every tenant always wants more.
WAITING: Final = 16
BOUND: Final = 1 << 40
BOUNDS: Final = Bounds(
    tenant_tokens=BOUND, model_tokens=BOUND, lowest_tokens=BOUND, bands=1, wait_ns=BOUND
)


class Client(NamedTuple):
    """A tenant that always has some requests of one size waiting at a gateway."""

    gateway: int
    tenant: str
    tokens: int
    weight: int = 1


class Engines:
    """The replicas: each works on one request after the other."""

    def __init__(self) -> None:
        self.queues: dict[str, deque[list[object]]] = {each: deque() for each in REPLICAS}

    def send(self, gateway: LateBinding[str], ticket: Ticket[str]) -> None:
        assert ticket.sent is not None
        self.queues[ticket.sent.replica].append([ticket.prompt.tokens, gateway, ticket])

    def work(self, now_ns: int, got: dict[str, int]) -> None:
        for queue in self.queues.values():
            left = TOKENS_PER_S * STEP_NS // SECOND_NS
            while queue and left > 0:
                tokens, gateway, ticket = queue[0]
                assert isinstance(tokens, int) and isinstance(ticket, Ticket)
                assert isinstance(gateway, LateBinding)
                done = min(left, tokens)
                left -= done
                queue[0][0] = tokens - done
                if tokens == done:
                    queue.popleft()
                    gateway.first_token(ticket, now_ns)
                    gateway.end(ticket, now_ns)
                    got[ticket.flow.tenant] = got.get(ticket.flow.tenant, 0) + ticket.prompt.tokens


def served(clients: list[Client], gateways: int, is_told: bool = True) -> dict[str, int]:
    """Return the tokens that each tenant got after the first seconds."""
    rules = [LateBinding[str](BOUNDS, Router()) for _ in range(gateways)]
    engines, early, got = Engines(), dict[str, int](), dict[str, int]()
    for step in range(SECONDS * SECOND_NS // STEP_NS):
        now_ns = step * STEP_NS
        for client in clients:
            own, flow = rules[client.gateway % gateways], Flow(0, client.tenant)
            while len(own.queues.get(flow, ())) < WAITING:
                prompt = Prompt(client.tokens, 4 * client.tokens)
                assert own.arrive(Ticket(flow, prompt, client.weight), now_ns) is None
        if is_told and step % TOLD_STEPS == 0:
            exchange(rules, now_ns)
        for own in rules:
            while (ticket := own.next(REPLICAS, now_ns, set())) is not None:
                engines.send(own, ticket)
        engines.work(now_ns, got if now_ns >= WARM_S * SECOND_NS else early)
    return got


def exchange(rules: list[LateBinding[str]], now_ns: int) -> None:
    reports = [own.shared.report() for own in rules]
    for number, own in enumerate(rules):
        for sender, report in enumerate(reports):
            if sender != number:
                own.shared.heard(str(sender), report, now_ns)
        own.shared.settle(now_ns)


def largest_shift(clients: list[Client], is_told: bool = True) -> float:
    """Return by which part of its tokens with one gateway a tenant gets more or less with two."""
    one, two = served(clients, 1), served(clients, 2, is_told)
    return max(abs(two.get(tenant, 0) - tokens) / tokens for tenant, tokens in one.items())


ELSEWHERE: Final = [
    Client(0, "a", 500),
    Client(1, "a", 500),
    Client(1, "b", 500),
    Client(1, "c", 500),
]


def test_a_tenant_at_both_gateways_gets_no_second_share() -> None:
    assert largest_shift(ELSEWHERE) <= 0.10


def test_without_messages_it_would_get_one() -> None:
    assert largest_shift(ELSEWHERE, is_told=False) > 0.3


@pytest.mark.parametrize("seed", range(8))
def test_two_gateways_are_within_a_tenth_of_one(seed: int) -> None:
    """Tenants of chance weights and sizes of requests, at one gateway or at both."""
    chance = Random(seed)
    weights = {tenant: chance.choice((1, 2)) for tenant in "abc"}
    clients = [
        Client(gateway, tenant, chance.choice((200, 500, 1_500)), weights[tenant])
        for tenant in weights
        for gateway in (0, 1)
        if chance.random() < 0.7
    ]
    assert not clients or largest_shift(clients) <= 0.10
