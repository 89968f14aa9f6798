"""Tokens that no session uses do not keep other tenants from copies."""

import pytest

from libs.common.messages.link_messages import LinkAsk
from libs.common.model import JobId, NodeId
from services.node_agent.jobs.files import Fault
from services.node_agent.links import grants
from services.node_agent.links.grants import FORGOTTEN_NS, Grants
from tests.integration.links_world import NOW_NS, SERVER

MOST, OF_TENANT = 8, 4


class Clock:
    """A wall clock that the test sets."""

    now_ns = NOW_NS


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(grants, "GRANTS_MAX", MOST)
    monkeypatch.setattr(grants, "GRANTS_PER_TENANT", OF_TENANT)
    return Clock()


def made(clock: Clock) -> Grants:
    return Grants(SERVER, lambda: clock.now_ns)


def signed(granted: Grants, tenant: str) -> str:
    """Sign a token and return its nonce."""
    granted.sign("cluster", LinkAsk(NodeId("dialler"), tenant, JobId("j"), 1, b"out"))
    return next(reversed(granted._known))


def test_unused_tokens_of_two_tenants_do_not_keep_a_third_one_out(clock: Clock) -> None:
    granted = made(clock)
    first = [signed(granted, tenant) for tenant in ("a", "b") for _ in range(OF_TENANT)]
    signed(granted, "c")
    assert granted.begin(first[0]) is None and granted.begin(first[1]) is not None
    assert len(granted._known) == MOST


def test_a_tenant_gets_no_more_than_its_tokens_until_they_are_old(clock: Clock) -> None:
    granted = made(clock)
    used, *unused = [signed(granted, "a") for _ in range(OF_TENANT)]
    assert granted.begin(used) is not None
    with pytest.raises(Fault, match="4 of tenant a"):
        signed(granted, "a")
    clock.now_ns += FORGOTTEN_NS
    signed(granted, "a")
    assert used in granted._known and not any(nonce in granted._known for nonce in unused)


def test_a_session_never_gives_way_to_another_tenant(clock: Clock) -> None:
    granted = made(clock)
    for tenant in ("a", "b"):
        for _ in range(OF_TENANT):
            assert granted.begin(signed(granted, tenant)) is not None
    with pytest.raises(Fault, match="8 tokens"):
        signed(granted, "c")
