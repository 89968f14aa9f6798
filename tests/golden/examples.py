"""One example of each kind of fact, with every field set: facts.json holds its bytes for ever.

`python -m tests.golden.examples` adds the kinds that facts.json lacks; it never changes one that is
there. When a kind gains a field, its example here stays as it is: what was recorded before must
decode to the field's default.
"""

import json
from pathlib import Path
from typing import Final

import msgspec

from libs.common import facts as f
from libs.common.facts import AnyFact, kind_of
from libs.common.facts.fabric_facts import LinkSuspected, NodeMeasured, PairMeasured
from libs.common.model import (
    AttemptRef,
    Gpu,
    GpuHold,
    GpuId,
    JobId,
    JobSpec,
    Member,
    NodeId,
    Serve,
    TenantId,
)
from libs.common.model_spec import ModelSpec, Replica
from libs.common.timing import Timing
from tests.golden.lock_examples import STATE_AND_LOCKS

PAGE: Final = Path(__file__).with_name("facts.json")
JOB: Final = JobId("job-1")
NODE: Final = NodeId("node-1")
GPU: Final = GpuId("GPU-0a1b")
TENANT: Final = TenantId("physics")
SPEC: Final = JobSpec(
    command=("python", "train.py"),
    name="train",
    workdir="/data",
    env={"A": "1"},
    nodes=2,
    gpus=4,
    gpu_share=50,
    priority=70,
    time_limit_s=3_600,
    start_s=60,
    grace_s=5,
    retries=3,
    requeue=False,
    stdin=True,
    labels={"team": "x"},
    output_limit_bytes=1_024,
    reject_if_impossible=True,
    on_control_loss="continue",
)

REPLICA: Final = JobSpec(command=("serve", "{port}"), serve=Serve("chat", 2, "/healthz", 60))
MODEL: Final = ModelSpec(
    command=("serve", "{port}"),
    replicas=2,
    workdir="/models",
    env={"A": "1"},
    gpus=4,
    gpu_share=50,
    priority=70,
    health_path="/healthz",
    startup_timeout_s=60,
    start_s=40,
    grace_s=5,
    labels={"team": "x"},
    output_limit_bytes=1_024,
)

EXAMPLES: Final[tuple[AnyFact, ...]] = (
    f.JobSubmitted(job_id=JOB, spec=SPEC, tenant=TENANT, user="ada"),
    f.CancelRequested(job_id=JOB, signal=2, grace_s=3, user="ada"),
    f.TenantSet(tenant=TENANT, max_gpu_share=800, max_waiting=9, weight=50),
    f.KeyCreated(
        key_id="k1",
        secret_hash="ab" * 32,
        tenant=TENANT,
        user="ada",
        role="member",
        name="laptop",
        expires_ns=1_800_000_000_000_000_000,
        by="root",
        request="cd" * 32,
    ),
    f.KeyRotated(
        key_id="k1", secret_hash="ef" * 32, old_until_ns=1_800_000_000_000_000_000, user="ada"
    ),
    f.KeyRevoked(key_id="k1", user="root"),
    f.KeyLimitsSet(key_id="k1", requests_per_minute=60, tokens_per_minute=20_000, user="root"),
    f.AccessRecorded(entries=b"\x78\x9c", count=2, first_ns=1, last_ns=2, dropped=3),
    f.SecretSet(tenant=TENANT, name="hf-token", version=3, user="ada"),
    f.SecretRemoved(tenant=TENANT, name="hf-token", user="ada"),
    f.ModelDeployed(name="chat", spec=MODEL, tenant=TENANT, user="ada"),
    f.ModelScaled(name="chat", replicas=3, user="ada"),
    f.ModelAutoscaled(name="chat", generation=2, replicas=4, law="pressure 0.80 wants 4"),
    f.ModelUndeployed(name="chat", user="ada"),
    f.ModelAliasSet(name="chat", alias="Qwen/Qwen2.5-7B", removed=True, user="ada"),
    f.ModelAdapterSet(
        name="chat",
        adapter="sql",
        path="/models/lora/sql",
        removed=True,
        user="ada",
        tenant=TENANT,
    ),
    f.ModelShareSet(name="chat", guest="biology", removed=True, user="ada"),
    f.ModelLimitsSet(
        name="chat",
        guest="biology",
        requests_per_minute=60,
        tokens_per_minute=20_000,
        user="ada",
        tenant=TENANT,
    ),
    f.ModelUsed(
        uses=(
            f.ModelUse(
                tenant=TENANT,
                user="ada",
                key_id="k1",
                owner=TenantId("biology"),
                model="chat",
                job_id=JobId("chat-1"),
                attempt=1,
                requests=3,
                input_tokens=40,
                output_tokens=50,
                share_ms=60,
            ),
        )
    ),
    f.NodeDeclaredDead(node_id=NODE, incarnation=4, lost=3, user="ada"),
    f.NodeInvited(node_id=NODE, secret_hash="ab" * 32, expires_ns=5, user="ada"),
    f.NodeJoined(
        node_id=NODE, secret_hash="ab" * 32, public_key="U" + "A" * 55, address="10.0.0.7"
    ),
    f.NodeRevoked(node_id=NODE, reason="it wrote too much"),
    f.NodeRemovalRequested(node_id=NODE, wait=True, user="ada"),
    f.QueueSet(queue="night", policy="fair_share", weight=50, ageing_s=600, user="root"),
    f.JobUpdated(job_id=JOB, priority=80, time_limit_s=7_200, held=True, user="ada"),
    f.RequeueRequested(job_id=JOB, attempt=2, user="ada"),
    f.AllocationExtended(job_id=JOB, attempt=2, expires_ns=1_800_000_000_000_000_000, user="ada"),
    f.ReservationSet(
        reservation="course",
        nodes=(NODE,),
        start_ns=5,
        end_ns=6,
        tenants=(TENANT,),
        users=("bob",),
        user="ada",
    ),
    f.ReservationCleared(reservation="course", user="ada"),
    f.JobAdmitted(job_id=JOB),
    f.JobRejected(job_id=JOB, reason="too many wait"),
    f.UsageCharged(job_id=JOB, attempt=2, tenant=TENANT, share_ms=12_345),
    f.BudgetExhausted(tenant=TENANT, gpu_hours=10, used_share_ms=3_600_000_123),
    f.BudgetRenewed(tenant=TENANT, month=202_611),
    f.QuotaTermBegan(instance="b"),
    f.TermBegan(instance="b"),
    f.PluginDisabled(
        extends="order",
        name="smallest",
        version="1.0",
        reason="it raised ZeroDivisionError: division by zero",
    ),
    f.ClusterConfigured(
        cluster_id="home", timing=Timing(heartbeat_ms=1, lease_ms=2, margin_ms=3, term_ms=4)
    ),
    f.LeaseExtended(duration_ms=600_000),
    f.ClusterRestored(life=2, backup="0123456789abcdef"),
    f.RestoreSettled(life=2),
    f.JobQueued(job_id=JOB),
    f.ElementBegun(
        job_id=JobId("job-1_7"), array=JOB, number=7, tenant=TENANT, priority=70, time_limit_s=3_600
    ),
    f.JobPlaced(
        job_id=JOB, attempt=2, members=(Member(NODE, 3, 0, (GpuHold(GPU, 50),)),), port=29_500
    ),
    f.JobStopOrdered(job_id=JOB, attempt=2, reason="time_limit", signal=2, grace_ms=5_000),
    f.JobPreempted(
        job_id=JOB, attempt=2, by=JobId("job-2"), signal=10, grace_ms=70_000, lost_share_ms=9
    ),
    f.DevicesReserved(job_id=JOB, attempt=2, members=(Member(NODE, 3, 1, (GpuHold(GPU, 50),)),)),
    f.JobRequeued(job_id=JOB, attempt=2, reason="node_lost", counted=True),
    f.JobClosed(job_id=JOB, attempt=2, outcome="failed", reason="exited", exit_code=3),
    f.AllocationWarned(job_id=JOB, attempt=2, expires_ns=1_800_000_000_000_000_000),
    f.ReplicasScaled(
        model="chat",
        generation=2,
        add=(Replica(JobId("chat-3"), REPLICA),),
        retire=(JobId("chat-1"),),
        reason="redeployed",
        tenant=TENANT,
        user="ada",
    ),
    f.NodeLost(node_id=NODE, incarnation=3, reason="silent"),
    f.NodeReturned(node_id=NODE, incarnation=4),
    f.NodeRemoved(node_id=NODE),
    f.NodeRegistered(
        node_id=NODE,
        incarnation=4,
        address="10.0.0.7",
        gpus=(Gpu(GPU, 0, "nvidia", "H100", 80 << 30),),
        attempts=(AttemptRef(JOB, 2),),
        boot_id="boot",
        version="0.1.0",
        simulated=True,
    ),
    f.JobStarted(job_id=JOB, attempt=2, node_id=NODE, pid=77),
    f.JobCheckpointed(job_id=JOB, attempt=2, node_id=NODE, asked=True),
    f.JobOverShare(
        job_id=JOB,
        attempt=2,
        node_id=NODE,
        uuid=GPU,
        used_bytes=3 << 30,
        share_bytes=1 << 30,
        grace_s=60,
    ),
    f.JobFinished(
        job_id=JOB,
        attempt=2,
        node_id=NODE,
        exit_code=None,
        signal=9,
        reason="killed",
        detail="lease",
        stdout_bytes=10,
        stderr_bytes=20,
        dropped_bytes=30,
    ),
    f.JobRefused(job_id=JOB, attempt=2, node_id=NODE, reason="no device"),
    f.JobReleased(job_id=JOB, attempt=2, node_id=NODE, checks={"cgroup": "empty"}),
    f.ReplicaReady(job_id=JobId("chat-3"), attempt=2, node_id=NODE),
    f.ReplicaUnready(job_id=JobId("chat-3"), attempt=2, node_id=NODE, reason="status 500"),
    f.GpuFaulted(node_id=NODE, uuid=GPU, health="offline", reason="xid", detail="79"),
    f.GpuRecovered(node_id=NODE, uuid=GPU),
    f.GpuErrorSeen(
        node_id=NODE,
        uuid=GPU,
        error="xid 31",
        verdict="restart_job",
        source="kernel_log",
        jobs=(AttemptRef(JOB, 2),),
        shadow=True,
        detail="pid=7, MMU Fault",
    ),
    f.GpuServiceSet(uuid=GPU, service="draining", user="ada"),
    f.GpuControlRequested(uuid=GPU, control="power", value="300", user="ada"),
    f.GpuControlled(
        node_id=NODE,
        uuid=GPU,
        control="clocks",
        value="1200-1500",
        request=17,
        outcome="denied",
        detail="no permission",
    ),
    f.FabricTestRequested(test="test-1", nodes=(NODE, NodeId("node-2")), user="ada"),
    f.FabricTestBegun(
        test="test-1",
        purpose="requested",
        nodes=(NODE, NodeId("node-2")),
        left_out=("node-3: it runs jobs",),
    ),
    f.FabricRoundOrdered(
        test="test-1",
        number=2,
        pairs=((NODE, NodeId("node-2")),),
        stage=1,
        planned=1,
        targets=("node-1",),
    ),
    f.FabricProbed(
        node_id=NODE,
        test="test-1",
        number=2,
        peer=NodeId("node-2"),
        bandwidth=1_000_000,
        small_bandwidth=500_000,
        rtt_ns=40_000,
        received=200_000,
        engine="tcp",
        error="node-2 stalled",
    ),
    f.LinkChosen(
        node_id=NODE,
        incarnation=4,
        peer=NodeId("node-2"),
        transport="tcp",
        why="the peer offers no RDMA: no port is active",
    ),
    f.LeaseProfileSet(profile="fast", timing=Timing(400, 3_400, 1_000, 3_000), user="root"),
    f.LeaseProfileSettled(seq=41),
    f.NodeHeldBack(node_id=NODE, until_ns=9, lost_ns=5, reason="it was lost 3 times"),
    f.NodeHoldEnded(node_id=NODE, until_ns=9),
    f.NodeHoldCleared(node_id=NODE, until_ns=9, user="root"),
    f.WatchdogChanged(node_id=NODE, incarnation=4, missing="it ended (signal 9)"),
    f.FabricRoundClosed(
        test="test-1",
        number=2,
        pairs=(PairMeasured(NODE, NodeId("node-2"), 1_000, 900, 500, 40_000, "x"),),
        at_ns=5,
    ),
    f.FabricTestEnded(
        test="test-1",
        outcome="done",
        detail="x",
        nodes=(NodeMeasured(NODE, 900, 950, 10, 7, 500, "slow"),),
        links=(LinkSuspected(NODE, NodeId("node-2"), 300, 333),),
        racks=((NODE, NodeId("node-2")),),
        measured_first=True,
        at_ns=6,
    ),
    f.PreflightEnded(
        test="preflight-job-1-2-5",
        job_id=JobId("job-1"),
        attempt=2,
        outcome="suspect",
        detail="node-2: slow",
        measured=1,
        excluded=(NodeId("node-2"),),
        excluded_until_ns=9,
        at_ns=8,
        not_before_ns=10,
    ),
    f.NodeDrained(node_id=NODE, test="node-1@6", evidence="slow", at_ns=7),
    f.NodeDrainCleared(node_id=NODE, test="node-1@6", user="ada"),
    f.ModelKeepRequested(
        model="chat",
        tier="host",
        nodes=2,
        node_list=(NODE,),
        weights="/models/chat",
        files={"model.safetensors": "ab" * 32},
        size_bytes=1_024,
        companion=("vllm", "preload"),
        tenant=TENANT,
        user="ada",
    ),
    f.ModelKeepDropped(model="chat", tier="host", user="ada"),
    f.KeptPlaced(model="chat", tier="host", node_id=NODE, request=7, number=1),
    f.KeptGranted(
        model="chat",
        tier="host",
        node_id=NODE,
        request=7,
        host_bytes=1_024,
        gpu_bytes={GPU: 2_048},
    ),
    f.KeptEvicted(model="chat", tier="host", node_id=NODE, request=7, reason="room"),
    f.KeptObserved(
        node_id=NODE,
        model="chat",
        tier="host",
        request=7,
        number=1,
        state="ready",
        size_bytes=1_024,
        content="cd" * 32,
        files={"model.safetensors": "ab" * 32},
        restore_ms=1_500,
        detail="why",
    ),
    f.StandbyPromoted(
        job_id=JOB,
        attempt=2,
        node_id=NODE,
        number=1,
        port=20_001,
        took_ms=300,
        reason="signal 9",
    ),
    *STATE_AND_LOCKS,
    f.PriceSet(name="h100", micros_per_hour=2_500_000, currency="EUR", removed=True, user="ada"),
    f.IdlePolicySet(tenant=TENANT, action="release", idle_s=1_800, grace_s=300, user="ada"),
    f.JobIdleSeen(job_id=JOB, attempt=2, node_id=NODE, idle_ms=60_000),
    f.JobIdleWarned(job_id=JOB, attempt=2, idle_s=1_800, action="release", since_ns=7, ends_ns=9),
)


def recorded() -> dict[str, str]:
    """Return the content of facts.json: the bytes of each kind in hex."""
    return dict(json.loads(PAGE.read_text())) if PAGE.exists() else {}


def with_missing(page: dict[str, str]) -> dict[str, str]:
    """Return the page with the kinds that it lacks, at its end."""
    new = {kind_of(fact): msgspec.msgpack.encode(fact).hex() for fact in EXAMPLES}
    return page | {kind: text for kind, text in new.items() if kind not in page}


if __name__ == "__main__":
    PAGE.write_text(json.dumps(with_missing(recorded()), indent=1) + "\n")
