"""Serving in virtual time: Muster's rules beside those of other routers, on simulated engines.

The engines are those of tests/sim/engine.py, with the defaults of Dynamo's mocker. The traces are
made with the shapes of public ones (bench/serving_traces.py); the other rules are written from
their documentation (bench/serving_rules.py). Times to the first token count from the arrival at the
gateway. No figure depends on this machine's speed.

`ttft_p99_over_best` divides Muster's p99 by the best of the other rules on the same trace.
`greedy_shift_pct` is how much the p99 of nine modest tenants changes when the tenth sends twenty
times as much. `lost_requests` are those that end neither with an answer nor with an error, while a
replica dies every 30 s.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from bench.cluster import QUICK, quantile, say
from bench.serving_rules import RULES, AtOnce
from bench.serving_scaling import scale
from bench.serving_traces import (
    FILES,
    SECOND_NS,
    TENANTS,
    conversation,
    flood,
    hashing,
    hot_prefix,
    read,
    shared_prefix,
    tool_agent,
)
from services.api_gateway.serving.fairness import OUTPUT_COST, jain
from tests.sim.engine import Asked, EngineSettings
from tests.sim.serving import ANSWERED, BROKEN, REFUSED, Failure, Run
from tests.sim.serving_gateway import MusterGateway

REPLICAS: Final = 8
REQUESTS: Final = 1_500 if QUICK else 12_000
TRACES: Final = os.environ.get("MUSTER_SERVING_TRACES", "")
OURS: Final = "muster"
# Requests per second; the slowest rules are near the limit of eight engines.
RATES: Final[dict[str, tuple[Callable[[int, float], list[Asked]], float]]] = {
    "conversation": (conversation, 8.0),
    "tool_agent": (tool_agent, 11.0),
    "shared_prefix": (shared_prefix, 14.0),
    "hot_prefix": (hot_prefix, 40.0),
}


class Result(NamedTuple):
    """The result of one rule for one trace. Times in milliseconds."""

    ttft: list[float]
    hit_pct: float
    spread: float
    outcomes: dict[str, int]
    run: Run
    retried: int

    def p(self, part: float) -> float:
        return quantile(self.ttft, part)


def gateway_of(name: str, hashes: Callable[[Asked], tuple[int, ...]]) -> MusterGateway | AtOnce:
    return MusterGateway(hashes) if name == OURS else AtOnce(RULES[name]())


def play(
    gateway: MusterGateway | AtOnce,
    trace: list[Asked],
    failures: tuple[Failure, ...] = (),
    replicas: int = REPLICAS,
) -> Result:
    run = Run(gateway, replicas, EngineSettings())
    run.run(trace, failures)
    found = [run.outcomes.get(asked.name) for asked in trace]
    outcomes = {
        how: sum(1 for each in found if each is not None and each.how == how)
        for how in (ANSWERED, BROKEN, REFUSED)
    }
    outcomes["lost"] = found.count(None)
    mean = sum(run.loads) / len(run.loads)
    return Result(
        ttft=ttft(run, trace),
        hit_pct=100 * run.hit_tokens / max(1, run.asked_tokens),
        spread=max(run.loads) / mean,
        outcomes=outcomes,
        run=run,
        retried=gateway.retried,
    )


def ttft(run: Run, trace: list[Asked]) -> list[float]:
    return [
        (run.outcomes[asked.name].first_ns - asked.at_ns) / 1e6
        for asked in trace
        if asked.name in run.outcomes and run.outcomes[asked.name].first_ns
    ]


def routing(name: str) -> None:
    """Compare all rules on one trace."""
    make, rate = RATES[name]
    file = Path(TRACES) / FILES.get(name, "") if TRACES else None
    is_public = file is not None and file.is_file()
    trace = read(file, REQUESTS, rate) if is_public and file else make(REQUESTS, rate)
    hashes, results = hashing(), {}
    for rule in (*RULES, OURS):
        results[rule] = found = play(gateway_of(rule, hashes), trace)
        setting = {"rule": rule, "rate": rate, "replicas": REPLICAS}
        say(f"{name}_ttft_p50_ms", found.p(0.5), "ms", len(found.ttft), **setting)
        say(f"{name}_ttft_p99_ms", found.p(0.99), "ms", len(found.ttft), **setting)
        say(f"{name}_hit_pct", found.hit_pct, "%", len(trace), **setting)
        say(f"{name}_max_over_mean_load", found.spread, "ratio", len(trace), **setting)
    others = {rule: found.p(0.99) for rule, found in results.items() if rule != OURS}
    best = min(others, key=lambda rule: others[rule])
    say(
        f"{name}_ttft_p99_over_best",
        results[OURS].p(0.99) / others[best],
        "ratio",
        len(trace),
        best=best,
        trace="public" if is_public else "made",
        input_mean=round(sum(asked.input_tokens for asked in trace) / len(trace)),
        output_mean=round(sum(asked.output_tokens for asked in trace) / len(trace)),
    )


def greedy() -> None:
    """Nine modest tenants, and a tenth that is modest or floods."""
    count = REQUESTS
    modest = dict.fromkeys(TENANTS, 4.0)
    flooding = modest | {TENANTS[-1]: 20 * 4.0}
    for rule in ("least_requests", OURS):
        p99 = {}
        for name, rates in (("modest", modest), ("flooding", flooding)):
            trace = flood(int(count * sum(rates.values()) / 40), rates)
            found = play(gateway_of(rule, hashing()), trace)
            victims = [asked for asked in trace if asked.tenant != TENANTS[-1]]
            p99[name] = quantile(ttft(found.run, victims), 0.99)
        say(
            "greedy_shift_pct",
            100 * (p99["flooding"] / p99["modest"] - 1),
            "%",
            count,
            rule=rule,
            modest_p99_ms=round(p99["modest"], 1),
            flooded_p99_ms=round(p99["flooding"], 1),
        )


def shares() -> None:
    """All ten tenants ask for more than their share, some for four times as much as others.

    What counts is what began while all of them asked.
    """
    rates = {tenant: 12.0 * (1 + number % 4) for number, tenant in enumerate(TENANTS)}
    trace = flood(4 * REQUESTS, rates)
    until_ns = trace[-1].at_ns
    for rule in ("least_requests", OURS):
        found = play(gateway_of(rule, hashing()), trace)
        tokens = dict.fromkeys(TENANTS, 0)
        for asked in trace:
            outcome = found.run.outcomes[asked.name]
            if 0 < outcome.first_ns <= until_ns:
                tokens[asked.tenant] += asked.input_tokens + OUTPUT_COST * asked.output_tokens
        say(
            "jain_index",
            jain(tokens.values()),
            "index",
            len(trace),
            rule=rule,
            least_over_most=round(min(tokens.values()) / max(tokens.values()), 3),
        )


def failures() -> None:
    """A replica dies every 30 s and is back after 20 s."""
    trace = conversation(REQUESTS, 5.0)
    seconds = trace[-1].at_ns // SECOND_NS
    deaths = tuple(
        Failure(at_s * SECOND_NS, (at_s // 30) % REPLICAS, 20 * SECOND_NS)
        for at_s in range(30, seconds, 30)
    )
    for rule in ("least_requests", OURS):
        found = play(gateway_of(rule, hashing()), trace, deaths)
        say(
            "lost_requests",
            float(found.outcomes["lost"]),
            "requests",
            len(trace),
            rule=rule,
            deaths=len(deaths),
            retried=found.retried,
            answered=found.outcomes[ANSWERED],
            ended_with_an_error_after_the_first_token=found.outcomes[BROKEN],
            refused=found.outcomes[REFUSED],
        )


def main() -> None:
    for name in RATES:
        routing(name)
    greedy()
    shares()
    failures()
    scale()


if __name__ == "__main__":
    main()
