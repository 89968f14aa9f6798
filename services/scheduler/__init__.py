"""The scheduler decides which job runs when and where.

Owns: the order of the queue, every placement, the end of every attempt, the loss and return of
  nodes
Reads: all facts
Writes: TermBegan, PluginDisabled, ClusterConfigured, LeaseExtended, LeaseProfileSettled,
  ClusterRestored, RestoreSettled, StateHashed, JobQueued, ElementBegun, JobPlaced, JobStopOrdered,
  JobPreempted, DevicesReserved, JobRequeued, JobClosed,
  AllocationWarned, JobIdleWarned, ModelAutoscaled, ReplicasScaled, KeptPlaced, KeptGranted,
  KeptEvicted, NodeLost, NodeReturned, NodeHeldBack, NodeHoldEnded, NodeRemoved,
  FabricTestBegun, FabricRoundOrdered, FabricRoundClosed, FabricTestEnded, PreflightEnded,
  NodeDrained, LockGranted, LockRenewed, LockFreed
Decides: order, placement, preemption, retries, stops, replicas of models and what they
  keep on nodes, node loss, who holds a lock;
  GPUs in use per tenant at placement
Never: contacts a node's devices; sends an order or a lease for a fact that the log has not
  acknowledged (`why` and `whatif` read the working state, which may be ahead of the log)
"""
