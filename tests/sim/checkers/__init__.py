"""Rules that must hold in every run, one file per rule.

Each checker is asked at the moment when its rule could break.

`before` and `after` see each fact as the log takes it (state before and after it), `began` each
process of a job that begins to run, `finished` the end of the run. A checker says what is wrong by
raising `Violation`.
"""

from typing import Final

from tests.sim.checkers.allocations_end_in_time import AllocationsEndInTime
from tests.sim.checkers.array_limit_is_kept import ArrayLimitIsKept
from tests.sim.checkers.at_most_one_attempt_alive import AtMostOneAttemptAlive
from tests.sim.checkers.audit_chain_verifies import AuditChainVerifies
from tests.sim.checkers.backfill_never_delays_the_head import BackfillNeverDelaysTheHead
from tests.sim.checkers.checker import Checker
from tests.sim.checkers.continue_waits_for_its_node import ContinueWaitsForItsNode
from tests.sim.checkers.dependencies_are_kept import DependenciesAreKept
from tests.sim.checkers.device_controls_stay_set import DeviceControlsStaySet
from tests.sim.checkers.devices_stay_with_their_node import DevicesStayWithTheirNode
from tests.sim.checkers.epoch_never_falls import EpochNeverFalls
from tests.sim.checkers.every_job_ends import EveryJobEnds
from tests.sim.checkers.fifo_is_kept import FifoIsKept
from tests.sim.checkers.folds_stay_linear import FoldsStayLinear
from tests.sim.checkers.gang_whole_or_not_at_all import GangWholeOrNotAtAll
from tests.sim.checkers.gangs_grow_only_into_unwanted_nodes import GangsGrowOnlyIntoUnwantedNodes
from tests.sim.checkers.gpu_never_shared import GpuNeverShared
from tests.sim.checkers.grants_die_with_their_holder import GrantsDieWithTheirHolder
from tests.sim.checkers.lives_after_the_storm import LivesAfterTheStorm
from tests.sim.checkers.lock_has_one_holder import LockHasOneHolder
from tests.sim.checkers.lost_only_after_a_lease import LostOnlyAfterALease
from tests.sim.checkers.memory_is_never_granted_twice import MemoryIsNeverGrantedTwice
from tests.sim.checkers.mig_placements_legal import MigPlacementsLegal
from tests.sim.checkers.models_keep_their_replicas import ModelsKeepTheirReplicas
from tests.sim.checkers.no_acknowledged_fact_lost import NoAcknowledgedFactLost
from tests.sim.checkers.no_decision_ignored import NoDecisionIgnored
from tests.sim.checkers.no_process_outlives_its_duty import NoProcessOutlivesItsDuty
from tests.sim.checkers.only_preemptible_jobs_are_preempted import OnlyPreemptibleJobsArePreempted
from tests.sim.checkers.placed_only_on_a_live_node import PlacedOnlyOnALiveNode
from tests.sim.checkers.placed_only_on_working_devices import PlacedOnlyOnWorkingDevices
from tests.sim.checkers.preflights_are_obeyed import PreflightsAreObeyed
from tests.sim.checkers.probes_measure_idle_nodes import ProbesMeasureIdleNodes
from tests.sim.checkers.quarantine_ends import QuarantineEnds
from tests.sim.checkers.quota_never_exceeded import QuotaNeverExceeded
from tests.sim.checkers.removed_only_when_empty import RemovedOnlyWhenEmpty
from tests.sim.checkers.replay_equals_live import ReplayEqualsLive
from tests.sim.checkers.reservations_are_kept import ReservationsAreKept
from tests.sim.checkers.reserved_devices_stay_reserved import ReservedDevicesStayReserved
from tests.sim.checkers.resident_data_gives_way import ResidentDataGivesWay
from tests.sim.checkers.shares_never_exceed_a_device import SharesNeverExceedADevice
from tests.sim.checkers.snapshots_hold_the_log import SnapshotsHoldTheLog
from tests.sim.checkers.started_only_when_placed import StartedOnlyWhenPlaced
from tests.sim.checkers.state_hashes_agree import StateHashesAgree
from tests.sim.checkers.tenants_never_share_a_gpu import TenantsNeverShareAGpu
from tests.sim.checkers.time_limit_never_early import TimeLimitNeverEarly
from tests.sim.checkers.turns_are_kept import TurnsAreKept

ALL: Final[tuple[type[Checker], ...]] = (
    AllocationsEndInTime,
    ArrayLimitIsKept,
    AtMostOneAttemptAlive,
    AuditChainVerifies,
    BackfillNeverDelaysTheHead,
    ContinueWaitsForItsNode,
    DependenciesAreKept,
    DevicesStayWithTheirNode,
    EpochNeverFalls,
    EveryJobEnds,
    FifoIsKept,
    FoldsStayLinear,
    GangWholeOrNotAtAll,
    GangsGrowOnlyIntoUnwantedNodes,
    GpuNeverShared,
    GrantsDieWithTheirHolder,
    LockHasOneHolder,
    LostOnlyAfterALease,
    MemoryIsNeverGrantedTwice,
    MigPlacementsLegal,
    ModelsKeepTheirReplicas,
    NoAcknowledgedFactLost,
    NoDecisionIgnored,
    NoProcessOutlivesItsDuty,
    ReservationsAreKept,
    ReservedDevicesStayReserved,
    OnlyPreemptibleJobsArePreempted,
    PlacedOnlyOnALiveNode,
    PlacedOnlyOnWorkingDevices,
    PreflightsAreObeyed,
    ProbesMeasureIdleNodes,
    QuarantineEnds,
    QuotaNeverExceeded,
    RemovedOnlyWhenEmpty,
    ReplayEqualsLive,
    ResidentDataGivesWay,
    SharesNeverExceedADevice,
    SnapshotsHoldTheLog,
    StartedOnlyWhenPlaced,
    StateHashesAgree,
    TenantsNeverShareAGpu,
    TimeLimitNeverEarly,
    TurnsAreKept,
    DeviceControlsStaySet,
)
# Those of deeper plans (`deep.py`).
DEEP: Final[tuple[type[Checker], ...]] = (*ALL, LivesAfterTheStorm)
