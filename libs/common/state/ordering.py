"""The inputs of the queue's order: queues, dependencies of jobs, and tenants' recent use.

Pure, in integers only. Use decays by whole hours, which quota's facts name, so every reader has the
same number. All tenants decay alike, so time alone never changes their order. Changed by
`order_fold.py`.
"""

from typing import Final

import msgspec

from libs.common.model import JobId, JobSpec

# The queue of jobs that name none. It always exists.
DEFAULT_QUEUE: Final = "default"
FIFO: Final = "fifo"
# The policy of a queue that names none, as the default queue until an operator sets it.
DEFAULT_POLICY: Final = "priority"
POLICIES: Final = (FIFO, DEFAULT_POLICY, "fair_share", "srsf", "las", "deadline")
# Dependencies: a job begins when another has completed, or has ended with any outcome.
AFTER_OK: Final = "afterok"
AFTER_ANY: Final = "afterany"
AFTER: Final = (AFTER_OK, AFTER_ANY)
# The dependency of a `singleton` on the last one of the same name before it.
SINGLETON: Final = "singleton"

# Largest number of dependencies of one job, and of all live jobs of a tenant.
AFTER_MAX: Final = 256
AFTER_OF_TENANT_MAX: Final = 20_000

SECOND_NS: Final = 1_000_000_000
HOUR_NS: Final = 3_600 * SECOND_NS
# 24 hours halve a use: (34/35) ** 24 = 0.499.
KEPT: Final = 34
OF: Final = 35
HALF_LIFE_MS: Final = 86_400_000
HOURS_MAX: Final = 64 * 24
MIB: Final = 1 << 20


class JobQueue(msgspec.Struct):
    """A queue.

    `ageing_s` seconds of waiting raise a job's priority by one; 0: never. The queue that holds
    least for its `weight` goes first. `backfill`: while its first job does not fit, other jobs may
    run if they do not delay it. With a `time_slice_s` its preemptible jobs take turns.
    """

    name: str
    policy: str = ""
    weight: int = 100
    ageing_s: int = 0
    backfill: bool = True
    time_slice_s: int = 0

    def slice_s(self, spec: JobSpec) -> int:
        """Return how long a job runs before it makes room for its equals; 0: it takes no turns.

        Only a job with time to save its work takes turns: otherwise two jobs that run longer than a
        slice would restart for ever.
        """
        return self.time_slice_s if spec.preemptible and spec.checkpoint_grace_s else 0


class Use(msgspec.Struct):
    """The decayed use of a tenant, as of `hour`.

    Hundredths of a GPU, thousandths of a CPU and MiB of host memory, each times milliseconds.
    `held_*` is what its jobs hold of hosts now, and the bytes of their pools. `runs` completed
    jobs ran for `runs_ms` in total; older ones weigh less.
    """

    hour: int = 0
    gpu: int = 0
    cpu: int = 0
    memory: int = 0
    held_cpus_milli: int = 0
    held_memory_bytes: int = 0
    held_pool_bytes: int = 0
    runs: int = 0
    runs_ms: int = 0


class Ordering(msgspec.Struct):
    """A job's inputs to the order of the queue, and what holds it back.

    `usual_ms` is the mean run time of its tenant's jobs when it was queued. `attained` is what its
    own attempts were charged, in hundredths of a GPU times milliseconds. `held_by` is the user who
    put it on hold. `requeue` is the attempt that a user asked to requeue. `waits` are the jobs that
    it waits for, with the kinds of dependency. `in_vain` is a job that it depended on and that did
    not complete.
    """

    usual_ms: int = 0
    attained: int = 0
    held: bool = False
    held_by: str = ""
    requeue: int = 0
    waits: dict[JobId, tuple[str, ...]] = {}
    in_vain: JobId = JobId("")


def decayed(use: int, hours: int) -> int:
    """Return what is left of the use after `hours`."""
    if hours <= 0 or not use:
        return use
    return use * KEPT**hours // OF**hours if hours < HOURS_MAX else 0
