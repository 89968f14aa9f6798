"""An agent whose registration readers ignored ends, so that its next start registers with a higher
incarnation.
"""

import asyncio

import pytest

from libs.common.errors import Unavailable
from libs.common.messages import Lease
from services.node_agent.registration import check_stands

OWN = 12


def lease(seq: int, registered_seq: int) -> Lease:
    return Lease(
        epoch=1,
        verdict="ok",
        sent_boot_ns=0,
        lease_ms=13_000,
        heartbeat_ms=1_000,
        digest="",
        seq=seq,
        incarnation=4,
        registered_seq=registered_seq,
    )


async def check(told: Lease, own: int | None = OWN) -> None:
    stored: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    if own is not None:
        stored.set_result(own)
    check_stands(told, stored)


def test_agent_ends_when_an_earlier_registration_of_its_incarnation_stands() -> None:
    with pytest.raises(
        Unavailable,
        match="incarnation 4 was registered before, by commit 11: start the agent again",
    ):
        asyncio.run(check(lease(seq=OWN, registered_seq=OWN - 1)))


@pytest.mark.parametrize(
    "told",
    [
        lease(seq=OWN, registered_seq=OWN),
        lease(
            seq=OWN - 1, registered_seq=OWN - 2
        ),  # the scheduler has not read this agent's registration
        lease(
            seq=OWN + 9, registered_seq=OWN + 1
        ),  # a later one: the append of this agent's next commit tells
        lease(seq=OWN + 9, registered_seq=0),  # a scheduler that does not know
    ],
)
def test_agent_goes_on_when_its_registration_stands_or_is_not_read(told: Lease) -> None:
    asyncio.run(check(told))


def test_agent_goes_on_while_its_registration_is_not_stored() -> None:
    asyncio.run(check(lease(seq=OWN, registered_seq=OWN - 1), own=None))
