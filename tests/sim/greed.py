"""A tenant that asks for as much as it may, in the runs whose plan includes it.

A pure function of the plan.

It holds jobs and submits many more jobs that depend on all of them, in large commits. It asks for
more devices than its limit, changes priorities and cancels by the hundred. Before the storm is over
it withdraws everything, so that the run can end. The checkers `folds_stay_linear` and
`others_are_placed` state what it must not achieve.
"""

import random
from typing import Final

from libs.common import facts as f
from libs.common.model import WHOLE_GPU, JobId, JobSpec, TenantId
from libs.common.state.ordering import AFTER
from tests.sim import faults
from tests.sim.behaviour import Behaviour
from tests.sim.faults import Blow, Plan
from tests.sim.orders import TimedFacts
from tests.sim.workload import Act

TENANT: Final = TenantId("greedy")
HELD: Final = 20
DEPENDENTS: Final = 60
EAGER: Final = 12
# Jobs per commit.
GROUP: Final = 20
STORM_EVERY_S: Final = 2.0
STORM_SIZE: Final = 20


def with_greed(plan: Plan, acts: list[Act]) -> list[Act]:
    """Return the same acts together with those of the greedy tenant."""
    for blow in plan.blows:
        if blow.kind == faults.GREEDY:
            timed = [(act.at_s, act.facts) for act in acts] + _greedy(
                random.Random(f"greedy {plan.seed}"), blow
            )
            timed.sort(key=lambda each: each[0])
            return [Act(at_s, number, facts) for number, (at_s, facts) in enumerate(timed)]
    return acts


def is_greedy(job_id: str) -> bool:
    return job_id.startswith("greedy-")


def _greedy(dice: random.Random, blow: Blow) -> TimedFacts:
    at_s, over_s = blow.at_s, blow.at_s + blow.length_s
    held = [JobId(f"greedy-held-{number}") for number in range(HELD)]
    after = [JobId(f"greedy-after-{number}") for number in range(DEPENDENTS)]
    eager = [JobId(f"greedy-eager-{number}") for number in range(EAGER)]
    found: TimedFacts = [(at_s, (f.TenantSet(tenant=TENANT, max_gpu_share=WHOLE_GPU),))]
    found.append(
        (
            at_s + 0.1,
            tuple(
                _submitted(job_id, JobSpec(command=_command(dice), hold=True)) for job_id in held
            ),
        )
    )
    for first in range(0, DEPENDENTS, GROUP):
        group = [_after(dice, job_id, held) for job_id in after[first : first + GROUP]]
        found.append((at_s + 0.2 + first / 100, tuple(group)))
    found.append(
        (
            at_s + 0.3,
            tuple(
                _submitted(job_id, JobSpec(command=_command(dice), priority=90)) for job_id in eager
            ),
        )
    )
    storm_s = at_s + STORM_EVERY_S
    while storm_s < over_s - STORM_EVERY_S:
        found.append(
            (
                storm_s,
                tuple(
                    _change(dice, job_id) for job_id in dice.sample([*after, *eager], STORM_SIZE)
                ),
            )
        )
        storm_s += STORM_EVERY_S
    found.append(((at_s + over_s) / 2, tuple(_cancelled(job_id) for job_id in after[::2])))
    found.append((over_s - 1.0, tuple(_cancelled(job_id) for job_id in after[1::2])))
    found.append((over_s, tuple(_cancelled(job_id) for job_id in (*held, *eager))))
    return found


def _command(dice: random.Random) -> tuple[str, ...]:
    return Behaviour(dice.randrange(500, 3_000)).command()


def _submitted(job_id: JobId, spec: JobSpec) -> f.JobSubmitted:
    return f.JobSubmitted(job_id=job_id, spec=spec, tenant=TENANT, user="u")


def _after(dice: random.Random, job_id: JobId, held: list[JobId]) -> f.JobSubmitted:
    kind = dice.choice(AFTER)
    return _submitted(
        job_id, JobSpec(command=_command(dice), after=tuple((kind, other) for other in held))
    )


def _change(dice: random.Random, job_id: JobId) -> f.AnyFact:
    if dice.random() < 0.2:
        return f.RequeueRequested(job_id=job_id, attempt=1, user="u")
    return f.JobUpdated(job_id=job_id, priority=dice.choice((0, 50, 100)), user="u")


def _cancelled(job_id: JobId) -> f.CancelRequested:
    return f.CancelRequested(job_id=job_id, signal=9, grace_s=0, user="u")
