"""The serving cluster in virtual time: no request is lost, tenants get equal shares, prompts go
where they are cached, and a run is the same each time.
"""

from random import Random

import pytest

from services.api_gateway.serving.admission import Bounds
from services.api_gateway.serving.fairness import SCALE, Fairness, Flow
from tests.sim.engine import Asked, EngineSettings
from tests.sim.serving import ANSWERED, BROKEN, REFUSED, SECOND_NS, Failure, Outcome, Run
from tests.sim.serving_gateway import BOUNDS, MusterGateway

SETTINGS = EngineSettings()


def hashes(asked: Asked) -> tuple[int, ...]:
    """Eight blocks of 256 bytes in each unit of 512 tokens."""
    return tuple(8 * unit + part for unit in asked.units for part in range(8))


def ask(name: int, at_s: float, tenant: str, units: tuple[int, ...], output: int = 50) -> Asked:
    return Asked(name, int(at_s * SECOND_NS), tenant, units, 512 * len(units) or 100, output)


def sessions(count: int, seed: int) -> list[Asked]:
    """Requests of 40 prompts that are asked again and again."""
    chance, found, at_s = Random(seed), [], 0.0
    for name in range(count):
        at_s += chance.expovariate(12)
        prompt = chance.randrange(40)
        units = tuple(range(100 * prompt, 100 * prompt + 8))
        found.append(ask(name, at_s, f"t{prompt % 4}", units))
    return found


def play(
    arrivals: list[Asked],
    replicas: int = 4,
    failures: tuple[Failure, ...] = (),
    gateway: MusterGateway | None = None,
    settings: EngineSettings = SETTINGS,
) -> Run:
    run = Run(gateway or MusterGateway(hashes), replicas, settings)
    run.run(arrivals, failures)
    return run


@pytest.mark.parametrize("seed", range(5))
def test_no_request_is_lost_while_replicas_die(seed: int) -> None:
    arrivals = sessions(400, seed)
    chance = Random(seed)
    failures = tuple(
        Failure(at_s * SECOND_NS, chance.randrange(4), 3 * SECOND_NS) for at_s in range(2, 30, 4)
    )
    gateway = MusterGateway(hashes)
    run = play(arrivals, failures=failures, gateway=gateway)
    assert sorted(run.outcomes) == [each.name for each in arrivals]
    hows = {each.how for each in run.outcomes.values()}
    assert ANSWERED in hows and hows <= {ANSWERED, BROKEN}
    for replica in range(4):
        load = gateway.router.loads.of(replica)
        assert (load.outstanding, load.pending) == (0, 0)
    assert gateway.waiting_tokens == 0
    assert gateway._running == {}


def test_requests_wait_while_no_replica_is_ready() -> None:
    failures = (Failure(1, 0, 5 * SECOND_NS),)
    run = play([ask(1, 1, "a", (1,))], replicas=1, failures=failures)
    assert run.outcomes[1].how == ANSWERED
    assert run.outcomes[1].first_ns > 5 * SECOND_NS


def test_two_runs_are_the_same() -> None:
    runs = [play(sessions(300, 7)).outcomes for _ in range(2)]
    assert runs[0] == runs[1]


def test_a_prompt_goes_where_it_is_cached() -> None:
    run = play(sessions(400, 1))
    assert run.hit_tokens > 0.8 * run.asked_tokens


def test_a_greedy_tenant_takes_no_more_than_its_share_while_others_wait() -> None:
    """Both ask for more than there is, one of them for nine times as much."""
    arrivals = [
        ask(name, name / 100, "greedy" if name % 10 else "modest", (10 * name, 10 * name + 1))
        for name in range(2_000)
    ]
    gateway = MusterGateway(hashes)
    narrow = SETTINGS._replace(prefill_ns=1_000_000)
    run = Run(gateway, 1, narrow)
    run.run(arrivals)
    modest = [run.outcomes[each.name] for each in arrivals if each.tenant == "modest"]
    greedy = [run.outcomes[each.name] for each in arrivals if each.tenant == "greedy"]
    last_ns = max(each.first_ns for each in modest)
    served = sum(1 for each in greedy if 0 < each.first_ns <= last_ns)
    assert abs(served - len(modest)) <= 0.1 * len(modest)


def test_a_tenant_s_requests_keep_their_order() -> None:
    arrivals = [ask(name, 0.001 * name, "a", (name,), output=1) for name in range(200)]
    run = play(arrivals, replicas=1)
    firsts = [run.outcomes[each.name].first_ns for each in arrivals]
    assert firsts == sorted(firsts)


def test_requests_beyond_the_bounds_are_refused_and_those_that_wait_too_long_too() -> None:
    bounds = Bounds(
        tenant_tokens=50_000,
        model_tokens=200_000,
        lowest_tokens=100_000,
        bands=2,
        wait_ns=3 * SECOND_NS,
    )
    gateway = MusterGateway(hashes, bounds=bounds)
    arrivals = [ask(name, 0.0, "a", tuple(range(20 * name, 20 * name + 10))) for name in range(99)]
    run = play(arrivals, replicas=1, gateway=gateway)
    refused = [each for each in run.outcomes.values() if each.how == REFUSED]
    assert Outcome(REFUSED, 0, 0) in refused
    slow = SETTINGS._replace(prefill_ns=1_000_000)
    late = play(arrivals[:9], 1, gateway=MusterGateway(hashes, bounds=bounds), settings=slow)
    assert {each.end_ns for each in late.outcomes.values() if each.how == REFUSED} == {
        3 * SECOND_NS
    }
    assert BOUNDS.wait_ns > bounds.wait_ns


def test_tenants_that_ask_most_do_not_fill_the_model_for_the_others() -> None:
    """Ten tenants flood a model with a small bound; one asks for less than its share."""
    bounds = BOUNDS._replace(tenant_tokens=40_000, model_tokens=100_000)
    arrivals = [
        ask(name, name / 100, f"greedy{name % 10}" if name % 100 else "modest", (name, 9_999_999))
        for name in range(3_000)
    ]
    run = play(arrivals, 1, gateway=MusterGateway(hashes, bounds=bounds))
    how = {
        tenant: [run.outcomes[each.name].how for each in arrivals if each.tenant == tenant]
        for tenant in ("modest", "greedy1")
    }
    assert REFUSED in how["greedy1"]
    assert how["modest"] == [ANSWERED] * 30


def test_what_a_tenant_is_charged_is_what_it_used() -> None:
    arrivals = [ask(name, name, "a", (name,), output=10) for name in range(5)]
    fairness = Fairness()
    play(arrivals, gateway=MusterGateway(hashes, fairness=fairness))
    assert fairness.counter(Flow(0, "a")) == 5 * (512 + 2 * 10) * SCALE
