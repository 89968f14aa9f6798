"""The bill adds up to what was used, through kills of quota, gateways and nodes and new prices.

`make bench NAME=usage_sums` does the same with 10,000 jobs and 100,000 requests.
"""

import pytest

from tests.usage_world import UsageWorld, differences


@pytest.mark.parametrize("seed", range(4))
def test_every_sum_of_the_bill_is_exact(seed: int) -> None:
    world = UsageWorld(seed)
    world.run(jobs=150, requests=1_000)
    found = differences(world)
    assert {name: number for name, number in found.items() if number} == {}
    assert world.expected_requests + world.lost_requests == 1_000
    assert world.kills["quota"] and sum(world.expected_share_ms.values()) > 0
