"""The scheduler: the queue and the map of the cluster.

Owns: the order of the queue, every placement, the end of every attempt, which nodes are lost and
  which returned
Reads: all facts
Writes: TermBegan, PluginDisabled, ClusterConfigured, LeaseExtended, JobQueued, ElementBegun,
  JobPlaced, JobStopOrdered, JobPreempted, DevicesReserved, JobRequeued, JobClosed,
  AllocationWarned, ReplicasScaled, NodeLost, NodeReturned, NodeRemoved
Decides: order, placement, preemption, retries, stops, replicas of models, node loss; GPUs in use
  per tenant at placement
Never: touches a node, or sends an order that comes from facts which the log has not acknowledged
"""
