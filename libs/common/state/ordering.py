"""What the order of the queue goes by, as the fold has it: queues, what a job waits for, what a
tenant has used lately.

Pure, all in integers. Use decays by whole hours, which quota's facts name, so that every reader has
the same number; all tenants decay alike, so that time alone never changes who is before whom.
Folded by `order_fold.py`.
"""

from typing import Final

import msgspec

from libs.common.model import JobId, JobSpec

# The queue of jobs that name none. It is always there; until somebody sets it, the scheduler's own
# setting is its policy.
DEFAULT_QUEUE: Final = "default"
FIFO: Final = "fifo"
POLICIES: Final = (FIFO, "priority", "fair_share", "srsf", "las", "deadline")
# How a job may depend on another: it begins when that one has ended well, or ended at all.
AFTER_OK: Final = "afterok"
AFTER_ANY: Final = "afterany"
AFTER: Final = (AFTER_OK, AFTER_ANY)
# As the fold notes it of `singleton`: the last one of the same name before it.
SINGLETON: Final = "singleton"

# Dependencies of one job, and of all jobs of a tenant that have not ended.
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
    """A queue by its name.

    `ageing_s` of waiting make up for one step of priority (0: never); the queue that holds least
    for its `weight` goes first; `backfill`: its first job, while it does not fit, lets those pass
    that do not delay it. With a `time_slice_s` its jobs take turns.
    """

    name: str
    policy: str = ""
    weight: int = 100
    ageing_s: int = 0
    backfill: bool = True
    time_slice_s: int = 0

    def slice_s(self, spec: JobSpec) -> int:
        """How long such a job runs at least before it makes room for one of equal priority that
        waits here; 0: it takes no turns.

        Only who has time to save its work does: else two jobs that are longer than a slice would
        begin anew for ever.
        """
        return self.time_slice_s if spec.preemptible and spec.checkpoint_grace_s else 0


class Use(msgspec.Struct):
    """What a tenant used, as of `hour`: hundredths of a GPU, thousandths of a CPU, MiB of host
    memory, each times milliseconds.

    `held_*` is what its jobs hold of hosts now. `runs` of its jobs that ended well ran for
    `runs_ms` in all; older ones weigh less.
    """

    hour: int = 0
    gpu: int = 0
    cpu: int = 0
    memory: int = 0
    held_cpus_milli: int = 0
    held_memory_bytes: int = 0
    runs: int = 0
    runs_ms: int = 0


class Ordering(msgspec.Struct):
    """A job's place in the order of the queue, and what keeps it back.

    `usual_ms`: how long its tenant's jobs took on average when it came. `attained`: what its own
    attempts were charged, in hundredths of a GPU times milliseconds. `held_by`: the user who holds
    it. `requeue`: the attempt that a user wants ended and begun again. `waits`: the jobs that it
    waits for, each with its kinds of dependency. `in_vain`: a job that did not end well.
    """

    usual_ms: int = 0
    attained: int = 0
    held: bool = False
    held_by: str = ""
    requeue: int = 0
    waits: dict[JobId, tuple[str, ...]] = {}
    in_vain: JobId = JobId("")


def decayed(use: int, hours: int) -> int:
    """What is left of it after so many hours."""
    if hours <= 0 or not use:
        return use
    return use * KEPT**hours // OF**hours if hours < HOURS_MAX else 0
