"""The API gateway: the outside of the cluster. REST and the OpenAI protocol under /v1, behind a bearer key.

Owns: the outside: REST, API keys, the views that people and tools read
Reads: all facts (views)
Writes: JobSubmitted, CancelRequested, TenantSet, KeyCreated, KeyRotated, KeyRevoked, AccessRecorded, SecretSet, SecretRemoved,
  NodeInvited, NodeJoined, NodeRemovalRequested, NodeRevoked, ModelDeployed, ModelScaled, ModelUndeployed, NodeDeclaredDead, GpuServiceSet,
  GpuControlRequested, QueueSet, JobUpdated, RequeueRequested, AllocationExtended, ReservationSet, ReservationCleared
Decides: validity of a request, authority, whether the log has room for one more submission, which replica serves a request
Never: places a job
"""
