"""Reasons that facts record: why an attempt was stopped, why a member ended, why a model's replicas
changed.

Pure. The log holds these words, so a value never changes. A reason that people may write freely
(the text of a refusal, the detail of an end) has no name here. The supervisor imports only the
standard library and repeats the words that it uses; tests/unit/test_reasons.py compares them.
"""

from typing import Final

# Ends of a member, as its node's agent or the scheduler records them (JobFinished, NodeLost).
EXITED: Final = "exited"
STOPPED: Final = "stopped"
NOT_STARTED: Final = "not_started"
# The command could not be executed.
EXEC_FAILED: Final = "exec_failed"
NO_IMAGE: Final = "no_image"
# The node does not allow what the job asks of its container.
NO_CONTAINER: Final = "no_container"
# The kernel killed a process of the job because the job had used up its host memory.
OUT_OF_MEMORY: Final = "out_of_memory"
TIME_LIMIT: Final = "time_limit"
LEASE_EXPIRED: Final = "lease_expired"
SUPERVISOR_LOST: Final = "supervisor_lost"
NODE_LOST: Final = "node_lost"
# A process of the job was killed by a signal, or exited with another code than 0.
SIGNALLED: Final = "signalled"
FAILED: Final = "failed"
# An element of a short array began, and how it ended is not known.
ELEMENT_LOST: Final = "element_lost"
# A device of the job failed.
GPU_FAULT: Final = "gpu_fault"
# The job caused an error on a device that works.
GPU_ERROR: Final = "gpu_error"
# The MPS daemon that the device's jobs shared exited.
MPS_LOST: Final = "mps_lost"
# A replica was not ready in time, or stopped answering its health path.
STARTUP_TIMEOUT: Final = "startup_timeout"
UNHEALTHY: Final = "unhealthy"
# The job kept its devices busy without progress for its `hang_timeout_s`.
HUNG: Final = "hung"
# The job used more memory of a device than its fraction, for longer than it may.
OVER_SHARE: Final = "over_share"

# Ends that the machine caused, not the job.
BY_THE_MACHINE: Final = (NODE_LOST, LEASE_EXPIRED, SUPERVISOR_LOST, GPU_FAULT, MPS_LOST)
# Ends that the agent decided because of what it observed of the job.
BY_THE_AGENT: Final = (STARTUP_TIMEOUT, UNHEALTHY, HUNG, OVER_SHARE)

# Stops that the scheduler orders, and the requeue or end that follows.
CANCELLED: Final = "cancelled"
REQUEUED: Final = "requeued"
START_TIMEOUT: Final = "start_timeout"
NODE_REMOVED: Final = "node_removed"
# A node refused the member.
REFUSED: Final = "refused"
# A member of the gang ended or lost its node, so the others are stopped.
GANG_HURT: Final = "gang_hurt"
# A job that this one depends on did not end as required.
DEPENDENCY_FAILED: Final = "dependency_failed"
# Members of a gang began with different images of the same tag. Another attempt follows.
IMAGES_DIFFER: Final = "images_differ"
# The time of an allocation is over, or its user returned it.
EXPIRED: Final = "expired"
RELEASED: Final = "released"
# All devices of the job were idle for longer than its tenant's policy allows.
IDLE_GPUS: Final = "idle_gpus"
# The attempt makes room for another job, or restarts with more nodes. Another attempt follows.
PREEMPTED: Final = "preempted"
GROWN: Final = "grown"
GOES_ON: Final = (PREEMPTED, GROWN)

# A node is lost because its agent registered with a later incarnation (NodeLost).
REPLACED: Final = "replaced"

# Changes of a model's replicas (ReplicasScaled). CRASHED: a new replica replaces a crashed one.
# WANTED: it was requested. RECOVERED: after crashes, a replica has served long enough, so they do
# not count any more. NODE_REMOVED is another reason: replicas leave a node that is to be removed.
CRASHED: Final = "crashed"
WANTED: Final = "wanted"
RECOVERED: Final = "recovered"
TOO_MANY: Final = "too many"
REDEPLOYED: Final = "redeployed"
UNDEPLOYED: Final = "undeployed"
