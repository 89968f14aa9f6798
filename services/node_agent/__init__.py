"""The node agent: it runs on one machine, carries out orders there and records the results.

Owns: one machine: its devices, its processes, the directories of its jobs
Reads: orders, leases, the desired state and the roster (core NATS), answers of its peers (UDP);
  only its own subject's last commit of the log
Writes: NodeRegistered, JobStarted, JobCheckpointed, JobOverShare, JobIdleSeen, ElementsEnded,
  JobFinished, JobRefused, JobReleased, ReplicaReady, ReplicaUnready, KeptObserved,
  StandbyPromoted, GpuFaulted, GpuRecovered, GpuErrorSeen, GpuControlled, FabricProbed,
  LinkChosen, WatchdogChanged
Decides: how to reach the desired state, whether a device is clean, whether a replica answers
Never: chooses a GPU
"""
