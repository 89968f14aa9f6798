"""The union of all facts, and the commit that carries facts through the log.

Pure. Facts are named in the past tense and never change: kinds and fields are only added, with
defaults, and the meaning of a recorded one stays. A kind that this version does not know decodes to
`Unknown`. A commit with a `min_reader` above READS stops its reader. Writers: see `subjects.py`.
"""

from typing import Final

import msgspec

from libs.common.errors import Corrupt, Refused
from libs.common.facts import packing
from libs.common.facts.allocation_facts import AllocationExtended as AllocationExtended
from libs.common.facts.allocation_facts import AllocationWarned as AllocationWarned
from libs.common.facts.array_facts import ElementBegun as ElementBegun
from libs.common.facts.array_facts import ElementsEnded as ElementsEnded
from libs.common.facts.device_facts import GpuControlled as GpuControlled
from libs.common.facts.device_facts import GpuControlRequested as GpuControlRequested
from libs.common.facts.device_facts import GpuErrorSeen as GpuErrorSeen
from libs.common.facts.device_facts import GpuFaulted as GpuFaulted
from libs.common.facts.device_facts import GpuRecovered as GpuRecovered
from libs.common.facts.device_facts import GpuServiceSet as GpuServiceSet
from libs.common.facts.device_facts import JobOverShare as JobOverShare
from libs.common.facts.diagnosis_facts import JobDiagnosed as JobDiagnosed
from libs.common.facts.efficiency_facts import ChargePart as ChargePart
from libs.common.facts.efficiency_facts import DeviceUse as DeviceUse
from libs.common.facts.efficiency_facts import EfficiencyWish as EfficiencyWish
from libs.common.facts.efficiency_facts import IdlePolicySet as IdlePolicySet
from libs.common.facts.efficiency_facts import JobIdleSeen as JobIdleSeen
from libs.common.facts.efficiency_facts import JobIdleWarned as JobIdleWarned
from libs.common.facts.efficiency_facts import PriceSet as PriceSet
from libs.common.facts.encoding import encoded
from libs.common.facts.fabric_facts import FabricDecision as FabricDecision
from libs.common.facts.fabric_facts import FabricProbed as FabricProbed
from libs.common.facts.fabric_facts import FabricRoundClosed as FabricRoundClosed
from libs.common.facts.fabric_facts import FabricRoundOrdered as FabricRoundOrdered
from libs.common.facts.fabric_facts import FabricTestBegun as FabricTestBegun
from libs.common.facts.fabric_facts import FabricTestEnded as FabricTestEnded
from libs.common.facts.fabric_facts import FabricTestRequested as FabricTestRequested
from libs.common.facts.fabric_facts import NodeDrainCleared as NodeDrainCleared
from libs.common.facts.fabric_facts import NodeDrained as NodeDrained
from libs.common.facts.fabric_facts import PreflightEnded as PreflightEnded
from libs.common.facts.fact import NUMBER_MAX as NUMBER_MAX
from libs.common.facts.fact import Fact as Fact
from libs.common.facts.fact import Ignored as Ignored
from libs.common.facts.fact import Unentitled as Unentitled
from libs.common.facts.fact import Unknown as Unknown
from libs.common.facts.fact import kind_of as kind_of
from libs.common.facts.fact import next_number as next_number
from libs.common.facts.identity_facts import AccessRecorded as AccessRecorded
from libs.common.facts.identity_facts import IdentityWish as IdentityWish
from libs.common.facts.identity_facts import KeyCreated as KeyCreated
from libs.common.facts.identity_facts import KeyLimitsSet as KeyLimitsSet
from libs.common.facts.identity_facts import KeyRevoked as KeyRevoked
from libs.common.facts.identity_facts import KeyRotated as KeyRotated
from libs.common.facts.identity_facts import TenantSet as TenantSet
from libs.common.facts.job_facts import CancelRequested as CancelRequested
from libs.common.facts.job_facts import JobAdmitted as JobAdmitted
from libs.common.facts.job_facts import JobClosed as JobClosed
from libs.common.facts.job_facts import JobFinished as JobFinished
from libs.common.facts.job_facts import JobPlaced as JobPlaced
from libs.common.facts.job_facts import JobQueued as JobQueued
from libs.common.facts.job_facts import JobRefused as JobRefused
from libs.common.facts.job_facts import JobRejected as JobRejected
from libs.common.facts.job_facts import JobReleased as JobReleased
from libs.common.facts.job_facts import JobRequeued as JobRequeued
from libs.common.facts.job_facts import JobStarted as JobStarted
from libs.common.facts.job_facts import JobStopOrdered as JobStopOrdered
from libs.common.facts.job_facts import JobSubmitted as JobSubmitted
from libs.common.facts.job_facts import UsageCharged as UsageCharged
from libs.common.facts.kept_facts import KeptDecision as KeptDecision
from libs.common.facts.kept_facts import KeptEvicted as KeptEvicted
from libs.common.facts.kept_facts import KeptGranted as KeptGranted
from libs.common.facts.kept_facts import KeptObserved as KeptObserved
from libs.common.facts.kept_facts import KeptPlaced as KeptPlaced
from libs.common.facts.kept_facts import ModelKeepDropped as ModelKeepDropped
from libs.common.facts.kept_facts import ModelKeepRequested as ModelKeepRequested
from libs.common.facts.kept_facts import StandbyPromoted as StandbyPromoted
from libs.common.facts.limit_facts import BudgetExhausted as BudgetExhausted
from libs.common.facts.limit_facts import BudgetRenewed as BudgetRenewed
from libs.common.facts.lock_facts import LockDecision as LockDecision
from libs.common.facts.lock_facts import LockFreed as LockFreed
from libs.common.facts.lock_facts import LockGranted as LockGranted
from libs.common.facts.lock_facts import LockReleaseRequested as LockReleaseRequested
from libs.common.facts.lock_facts import LockRenewed as LockRenewed
from libs.common.facts.lock_facts import LockRenewRequested as LockRenewRequested
from libs.common.facts.lock_facts import LockRequested as LockRequested
from libs.common.facts.lock_facts import LockWish as LockWish
from libs.common.facts.membership_facts import MembershipWish as MembershipWish
from libs.common.facts.membership_facts import NodeHeldBack as NodeHeldBack
from libs.common.facts.membership_facts import NodeHoldCleared as NodeHoldCleared
from libs.common.facts.membership_facts import NodeHoldEnded as NodeHoldEnded
from libs.common.facts.membership_facts import NodeInvited as NodeInvited
from libs.common.facts.membership_facts import NodeJoined as NodeJoined
from libs.common.facts.membership_facts import NodeLost as NodeLost
from libs.common.facts.membership_facts import NodeRemovalRequested as NodeRemovalRequested
from libs.common.facts.membership_facts import NodeRemoved as NodeRemoved
from libs.common.facts.membership_facts import NodeReturned as NodeReturned
from libs.common.facts.membership_facts import NodeRevoked as NodeRevoked
from libs.common.facts.model_facts import ModelAdapterSet as ModelAdapterSet
from libs.common.facts.model_facts import ModelAliasSet as ModelAliasSet
from libs.common.facts.model_facts import ModelAutoscaled as ModelAutoscaled
from libs.common.facts.model_facts import ModelDeployed as ModelDeployed
from libs.common.facts.model_facts import ModelLimitsSet as ModelLimitsSet
from libs.common.facts.model_facts import ModelScaled as ModelScaled
from libs.common.facts.model_facts import ModelShareSet as ModelShareSet
from libs.common.facts.model_facts import ModelUndeployed as ModelUndeployed
from libs.common.facts.model_facts import ModelWish as ModelWish
from libs.common.facts.model_facts import ReplicaReady as ReplicaReady
from libs.common.facts.model_facts import ReplicasScaled as ReplicasScaled
from libs.common.facts.model_facts import ReplicaUnready as ReplicaUnready
from libs.common.facts.nesting import DEPTH_MAX, array_length, kind_in, too_deep
from libs.common.facts.nesting import UNDECODABLE as UNDECODABLE
from libs.common.facts.node_facts import LinkChosen as LinkChosen
from libs.common.facts.node_facts import NodeDeclaredDead as NodeDeclaredDead
from libs.common.facts.node_facts import NodeRegistered as NodeRegistered
from libs.common.facts.node_facts import WatchdogChanged as WatchdogChanged
from libs.common.facts.notification_facts import NotificationRemoved as NotificationRemoved
from libs.common.facts.notification_facts import NotificationSet as NotificationSet
from libs.common.facts.order_facts import JobUpdated as JobUpdated
from libs.common.facts.order_facts import QueueSet as QueueSet
from libs.common.facts.order_facts import RequeueRequested as RequeueRequested
from libs.common.facts.preemption_facts import DevicesReserved as DevicesReserved
from libs.common.facts.preemption_facts import JobCheckpointed as JobCheckpointed
from libs.common.facts.preemption_facts import JobPreempted as JobPreempted
from libs.common.facts.reservation_facts import ReservationCleared as ReservationCleared
from libs.common.facts.reservation_facts import ReservationSet as ReservationSet
from libs.common.facts.secret_facts import SecretRemoved as SecretRemoved
from libs.common.facts.secret_facts import SecretSet as SecretSet
from libs.common.facts.sizes import COMMIT_BYTES_MAX as COMMIT_BYTES_MAX
from libs.common.facts.sizes import FACT_BYTES_MAX as FACT_BYTES_MAX
from libs.common.facts.sizes import check_fact_size as check_fact_size
from libs.common.facts.sizes import fits as fits
from libs.common.facts.sizes import size_of as size_of
from libs.common.facts.term_facts import ClusterConfigured as ClusterConfigured
from libs.common.facts.term_facts import ClusterRestored as ClusterRestored
from libs.common.facts.term_facts import LeaseExtended as LeaseExtended
from libs.common.facts.term_facts import LeaseProfileSet as LeaseProfileSet
from libs.common.facts.term_facts import LeaseProfileSettled as LeaseProfileSettled
from libs.common.facts.term_facts import PluginDisabled as PluginDisabled
from libs.common.facts.term_facts import QuotaTermBegan as QuotaTermBegan
from libs.common.facts.term_facts import RestoreSettled as RestoreSettled
from libs.common.facts.term_facts import StateHashed as StateHashed
from libs.common.facts.term_facts import TermBegan as TermBegan
from libs.common.facts.term_facts import TermFact as TermFact
from libs.common.facts.usage_facts import ChargeLine as ChargeLine
from libs.common.facts.usage_facts import ModelUse as ModelUse
from libs.common.facts.usage_facts import ModelUsed as ModelUsed

# Reader version that a plain commit needs, that a packed commit needs, and that this code has.
VERSION: Final = 1
PACKED: Final = 2
READS: Final = PACKED


OrderFact = (
    QueueSet
    | JobUpdated
    | RequeueRequested
    | AllocationExtended
    | ReservationSet
    | ReservationCleared
)
GatewayFact = (
    JobSubmitted
    | CancelRequested
    | IdentityWish
    | AccessRecorded
    | SecretSet
    | SecretRemoved
    | MembershipWish
    | ModelWish
    | ModelUsed
    | ModelKeepRequested
    | ModelKeepDropped
    | NodeDeclaredDead
    | LeaseProfileSet
    | GpuServiceSet
    | GpuControlRequested
    | FabricTestRequested
    | NodeDrainCleared
    | NodeHoldCleared
    | OrderFact
    | LockWish
    | JobDiagnosed
    | EfficiencyWish
    | NotificationSet
    | NotificationRemoved
)
QuotaFact = (
    JobAdmitted | JobRejected | UsageCharged | BudgetExhausted | BudgetRenewed | QuotaTermBegan
)
JobDecision = (
    JobQueued
    | ElementBegun
    | JobPlaced
    | JobStopOrdered
    | JobPreempted
    | DevicesReserved
    | JobRequeued
    | JobClosed
    | AllocationWarned
    | JobIdleWarned
)
NodeDecision = NodeLost | NodeReturned | NodeHeldBack | NodeHoldEnded | NodeRemoved | FabricDecision
ModelDecision = ModelAutoscaled | ReplicasScaled
SchedulerFact = TermFact | JobDecision | ModelDecision | KeptDecision | NodeDecision | LockDecision
NodeJobFact = (
    JobStarted
    | JobCheckpointed
    | JobOverShare
    | JobIdleSeen
    | ElementsEnded
    | JobFinished
    | JobRefused
    | JobReleased
    | ReplicaReady
    | ReplicaUnready
    | KeptObserved
    | StandbyPromoted
)
GpuFact = GpuFaulted | GpuRecovered | GpuErrorSeen | GpuControlled
NodeFact = NodeRegistered | NodeJobFact | GpuFact | FabricProbed | LinkChosen | WatchdogChanged
AnyFact = GatewayFact | QuotaFact | SchedulerFact | NodeFact


class Commit(msgspec.Struct, frozen=True, array_like=True):
    """One message of the log: the facts that one writer appended together.

    `number` counts a writer's commits from 1 (`next_number`). `epoch` is the scheduler's term or
    the node's incarnation; 0 for other writers. `at_ns` is the writer's wall clock, `seen` the
    sequence that it had applied when it decided.
    """

    version: int
    min_reader: int
    writer: str
    number: int
    epoch: int
    at_ns: int
    seen: int
    facts: tuple[AnyFact | Unknown, ...]


class _Packed(msgspec.Struct, frozen=True, array_like=True):
    """A commit whose facts are compressed in `packed` instead of `facts` (see `packing.py`)."""

    version: int
    min_reader: int
    writer: str
    number: int
    epoch: int
    at_ns: int
    seen: int
    facts: tuple[()]
    packed: bytes


class _Outline(msgspec.Struct, frozen=True, array_like=True):
    """A commit whose facts are not decoded yet."""

    version: int
    min_reader: int
    writer: str
    number: int
    epoch: int
    at_ns: int
    seen: int
    facts: msgspec.Raw


KINDS: Final[dict[str, type[Fact]]] = {str(t.__struct_config__.tag): t for t in AnyFact.__args__}

_typed = msgspec.msgpack.Decoder(Commit)
_packed = msgspec.msgpack.Decoder(_Packed)
_facts = msgspec.msgpack.Decoder(tuple[msgspec.Raw, ...])
_fact = msgspec.msgpack.Decoder(AnyFact)
_outline = msgspec.msgpack.Decoder(_Outline)


def encode(commit: Commit) -> bytes:
    """Return the bytes of a commit.

    Raises Refused if it is larger than the log's bound, or has values that cannot be encoded.
    """
    data = encoded(commit)
    if len(data) > COMMIT_BYTES_MAX:
        raise Refused(
            f"a commit of {len(data)} bytes is over the log's bound of {COMMIT_BYTES_MAX}: "
            "send less at once"
        )
    return data


def encode_packed(commit: Commit) -> bytes:
    """Return the bytes of a packed commit, for one that is too large in plain form.

    Raises Refused if it is too large in packed form too, or has values that cannot be encoded.
    """
    plain, most = encoded(commit.facts), packing.unpacked_max(commit.writer)
    if len(plain) > most:
        raise Refused(
            f"the facts of a commit are {len(plain)} bytes, over the log's bound of {most}: "
            "send less at once"
        )
    head = (commit.version, PACKED, *msgspec.structs.astuple(commit)[2:7])
    data = encoded((*head, (), packing.pack(plain)))
    if len(data) > COMMIT_BYTES_MAX:
        raise Refused(
            f"a packed commit of {len(data)} bytes is over the log's bound of "
            f"{COMMIT_BYTES_MAX}: send less at once"
        )
    return data


def decode(data: bytes) -> Commit:
    """Return the commit in these bytes.

    Raises TooNew for a later `min_reader`, Corrupt for other bytes.
    """
    try:
        commit = _typed.decode(data)
    except UNDECODABLE:
        return _decode_slowly(data)
    return commit if commit.min_reader < PACKED else _decode_packed(commit, data)


def outline(data: bytes) -> tuple[str, int]:
    """Return the writer that a commit names, and its number of plain facts, without decoding them.

    Raises Corrupt.
    """
    try:
        head = _outline.decode(data)
    except UNDECODABLE as error:
        raise Corrupt(f"these bytes are not a commit: {error}") from error
    return head.writer, array_length(bytes(head.facts))


def _decode_packed(commit: Commit, data: bytes) -> Commit:
    if commit.min_reader > READS:
        raise packing.too_new(commit.min_reader, READS)
    if commit.facts:
        return commit
    try:
        plain = packing.unpack(_packed.decode(data).packed, packing.unpacked_max(commit.writer))
        if packing.is_node(commit.writer) and array_length(plain) > packing.NODE_FACTS_MAX:
            raise Corrupt(
                f"the packed facts of a commit of {commit.writer} are more than "
                f"{packing.NODE_FACTS_MAX}"
            )
        if packing.is_node(commit.writer) and too_deep(plain):
            raise Corrupt(
                f"the packed facts of a commit of {commit.writer} nest more than {DEPTH_MAX} levels"
            )
        facts = tuple(_decode_fact(bytes(raw)) for raw in _facts.decode(plain))
    except (ValueError, RecursionError) as error:  # msgspec's own errors are ValueErrors too
        raise Corrupt(
            f"the packed facts of a commit of {commit.writer} cannot be read: {error}"
        ) from error
    return msgspec.structs.replace(commit, facts=facts)


def _decode_slowly(data: bytes) -> Commit:
    """Decode fact by fact, so that one unknown kind does not hide the others."""
    try:
        head = _outline.decode(data)
        raws = _facts.decode(head.facts)
    except UNDECODABLE as error:
        raise Corrupt(f"these bytes are not a commit: {error}") from error
    if head.min_reader > READS:
        raise packing.too_new(head.min_reader, READS)
    facts = tuple(_decode_fact(bytes(raw)) for raw in raws)
    return Commit(
        version=head.version,
        min_reader=head.min_reader,
        writer=head.writer,
        number=head.number,
        epoch=head.epoch,
        at_ns=head.at_ns,
        seen=head.seen,
        facts=facts,
    )


def _decode_fact(raw: bytes) -> AnyFact | Unknown:
    """Decode one fact. An invalid one becomes Unknown, so a faulty agent stops no reader."""
    try:
        fact: AnyFact = _fact.decode(raw)
        return fact
    except UNDECODABLE:
        return Unknown(name=kind_in(raw), raw=raw)
