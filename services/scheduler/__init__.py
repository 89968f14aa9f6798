"""The scheduler: the queue and the map of the cluster.

Owns: the order of the queue, every placement, the end of every attempt, who is lost and who returned
Reads: all facts
Writes: TermBegan, PluginDisabled, ClusterConfigured, LeaseExtended, JobQueued, ElementBegun, JobPlaced, JobStopOrdered, JobPreempted, \
DevicesReserved, JobRequeued, JobClosed, AllocationWarned, ReplicasScaled, NodeLost, NodeReturned, NodeRemoved
Decides: order, placement, preemption, retries, stops, replicas of models, node loss; GPUs in use per tenant at placement
Never: touches a node, or speaks from a state that the log has not acknowledged
"""
