"""What a job has to do with others that need its devices, as the fold has it.

Pure; folded by `preemption_fold.py`.
"""

import msgspec

from libs.common.model import JobId, Member


class Preemption(msgspec.Struct):
    """`times` it made room, the last time for `by`; when it last made room after its turn
    (`sliced_ns`); `grown` times it began anew with more nodes.

    Its last checkpoint (the node's wall clock), and the last attempt that saved its work when it
    was told to stop. `reserved` are the devices that are kept for its next placement.
    """

    times: int = 0
    by: JobId = JobId("")
    sliced_ns: int = 0
    grown: int = 0
    checkpoints: int = 0
    checkpointed_ns: int = 0
    saved: int = 0
    reserved: tuple[Member, ...] = ()
