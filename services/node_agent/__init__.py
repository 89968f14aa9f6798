"""The node agent: one machine of the cluster. It reaches what was ordered, and says what became of it.

Owns: one machine: its devices, its processes, the directories of its jobs
Reads: orders, leases, the desired state and the roster (core NATS), its peers' answers (UDP); of the log only its own subject's last commit
Writes: NodeRegistered, JobStarted, JobFinished, JobRefused, JobReleased, GpuFaulted, GpuRecovered
Decides: how to reach what was ordered, and whether a device is clean
Never: chooses a GPU
"""
