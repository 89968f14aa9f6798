"""The API gateway: serves REST and the OpenAI protocol under /v1, behind a bearer key.

Owns: REST, API keys, sessions, the views that people and tools read
Reads: all facts (views)
Writes: JobSubmitted, CancelRequested, TenantSet, KeyCreated, KeyRotated, KeyRevoked,
  KeyLimitsSet, AccessRecorded, SecretSet, SecretRemoved, NodeInvited, NodeJoined,
  NodeRemovalRequested, NodeRevoked, ModelDeployed, ModelScaled, ModelUndeployed, ModelAliasSet,
  ModelShareSet, ModelLimitsSet, ModelAdapterSet, ModelUsed, ModelKeepRequested, ModelKeepDropped,
  NodeDeclaredDead, LeaseProfileSet, GpuServiceSet, GpuControlRequested, FabricTestRequested,
  NodeDrainCleared, NodeHoldCleared, QueueSet, JobUpdated, RequeueRequested, AllocationExtended,
  ReservationSet, ReservationCleared, LockRequested, LockRenewRequested, LockReleaseRequested,
  JobDiagnosed, PriceSet, IdlePolicySet, NotificationSet, NotificationRemoved
Decides: whether a request is valid and authorised, whether the log has room for it, which replica
  serves it
Never: places a job
"""
