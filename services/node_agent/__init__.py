"""The node agent: one machine of the cluster. It reaches what was ordered, and says what became of it.

Owns: one machine: its devices, its processes, the directories of its jobs
Reads: orders, leases, the desired state and the roster (core NATS), its peers' answers (UDP); of the log only its own subject's last commit
Writes: NodeRegistered, JobStarted, JobCheckpointed, JobOverShare, JobFinished, JobRefused, JobReleased, ReplicaReady, \
ReplicaUnready, GpuFaulted, GpuRecovered, GpuErrorSeen, GpuControlled
Decides: how to reach what was ordered, whether a device is clean, whether a replica answers
Never: chooses a GPU
"""
