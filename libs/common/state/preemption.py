"""A job's preemptions, checkpoints and reserved devices, in the state.

Pure; changed by `preemption_fold.py`.
"""

import msgspec

from libs.common.model import JobId, Member


class Preemption(msgspec.Struct):
    """The preemptions of one job.

    `times` counts how often it made room for another job, `by` is the last such job. `sliced_ns` is
    when it last made room because its time slice was over. `grown` counts restarts with more nodes.
    `checkpointed_ns` is its last checkpoint (the node's wall clock), `saved` the last attempt that
    saved its work when it was told to stop. `reserved` are devices for its next placement.
    `lender` is the waiting job whose reserved nodes its attempt uses (docs/queues.md).
    """

    times: int = 0
    by: JobId = JobId("")
    sliced_ns: int = 0
    grown: int = 0
    checkpoints: int = 0
    checkpointed_ns: int = 0
    saved: int = 0
    reserved: tuple[Member, ...] = ()
    lender: JobId = JobId("")
