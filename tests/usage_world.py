"""A cluster in virtual time whose bill is known: jobs, replicas, requests, prices and kills.

The folds, quota and the bill are the real ones. Gateways and agents are small models that record
the same facts. Kills: quota loses what it decided and did not append, and starts again from a
snapshot and the log; a gateway loses the requests that it has not recorded; a node is lost with its
attempts. `expected_*` is what must be billed, computed beside all that by plain sums.
"""

from collections import Counter, deque
from random import Random
from typing import Final, NamedTuple

from libs.common import facts as f
from libs.common import subjects
from libs.common.facts import AnyFact, Commit, DeviceUse, ModelUse
from libs.common.messages.usage_messages import FURTHER
from libs.common.model import (
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
from libs.common.state.cluster import Cluster
from libs.common.transport import snapshot
from services.audit.export.bill import KINDS, Bill
from services.quota.decide import decide
from services.quota.state import State

MS: Final = 1_000_000
START_NS: Final = 1_795_000_000_000 * MS
MODELS_OF_GPUS: Final = ("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB")
TENANTS: Final = tuple(TenantId(name) for name in ("biology", "default", "physics"))
USERS: Final = ("ada", "bob", "eve", "joe")
NODES: Final = 16
GPUS: Final = 8
AT_ONCE: Final = 40
REPLICAS: Final = 4
GATEWAYS: Final = 3
# One in so many steps kills something, or changes a price.
KILL_ONE_IN: Final = 60
PRICE_ONE_IN: Final = 400
EPOCH: Final = 1


class Running(NamedTuple):
    """An attempt that runs, on these devices; `model` is empty for users' jobs."""

    job_id: JobId
    attempt: int
    tenant: TenantId
    holds: dict[NodeId, tuple[GpuHold, ...]]
    model: str


class UsageWorld:
    """The cluster and its log. `quota` is the state of the quota process that lives now."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.now_ns = START_NS
        self.log: list[tuple[str, Commit]] = []
        self.numbers: Counter[str] = Counter()
        self.quota = State(Cluster())
        self.kept, self.kept_at = snapshot.encode(self.quota.cluster), 0
        self.free: list[tuple[NodeId, GpuId]] = []
        self.incarnations: dict[NodeId, int] = {}
        self.running: list[Running] = []
        self.waiting: deque[tuple[JobId, int, TenantId, str]] = deque()
        self.ordinals: Counter[str] = Counter()
        self.unrecorded: list[list[ModelUse]] = [[] for _ in range(GATEWAYS)]
        self.kills: Counter[str] = Counter()
        self.expected_share_ms: Counter[str] = Counter()
        self.expected_requests = self.expected_tokens = 0
        self.lost_requests = 0
        self._open()

    def _open(self) -> None:
        self.say(f.TermBegan(instance="s"))
        for number in range(NODES):
            self._register(NodeId(f"n{number}"))
        for tenant in TENANTS:
            name = f"m{tenant[0]}"
            self.say(f.ModelDeployed(name=name, spec=_model_spec(), tenant=tenant, user="ada"))
            for _ in range(REPLICAS):
                self._replica(name, tenant)

    def say(self, *facts: AnyFact, gateway: int = 0) -> None:
        """Append facts of one writer, and let quota read them."""
        first = facts[0]
        subject = {
            subjects.GATEWAY_KIND: subjects.gateway(f"g{gateway}"),
            subjects.QUOTA_KIND: subjects.QUOTA,
            subjects.SCHEDULER_KIND: subjects.SCHEDULER,
            subjects.NODE_KIND: subjects.node(str(getattr(first, "node_id", ""))),
        }[subjects.WRITER_OF[type(first)]]
        self.quota.apply_entry(*self._append(subject, facts))

    def _append(self, subject: str, facts: tuple[AnyFact, ...]) -> tuple[int, str, Commit]:
        self.numbers[subject] += 1
        epochs = {subjects.SCHEDULER_KIND: EPOCH, subjects.QUOTA_KIND: EPOCH}
        epoch = self.incarnations.get(NodeId(subjects.node_of(subject)), 0)
        commit = Commit(
            version=f.VERSION,
            min_reader=f.VERSION,
            writer=subject,
            number=self.numbers[subject],
            epoch=epochs.get(subjects.writer_kind(subject), epoch),
            at_ns=self.now_ns,
            seen=len(self.log),
            facts=facts,
        )
        self.log.append((subject, commit))
        return len(self.log), subject, commit

    def _register(self, node_id: NodeId) -> None:
        """Register a node anew; its devices are free."""
        self.incarnations[node_id] = self.incarnations.get(node_id, 0) + 1
        model = MODELS_OF_GPUS[int(node_id[1:]) % len(MODELS_OF_GPUS)]
        gpus = tuple(
            Gpu(GpuId(f"{node_id}-{at}"), at, vendor="nvidia", model=model, memory_bytes=80 << 30)
            for at in range(GPUS)
        )
        self.say(
            f.NodeRegistered(
                node_id=node_id, incarnation=self.incarnations[node_id], address="", gpus=gpus
            )
        )
        self.free += [(node_id, gpu.uuid) for gpu in gpus]

    def _replica(self, name: str, tenant: TenantId) -> None:
        self.ordinals[name] += 1
        job_id = JobId(f"{name}-{self.ordinals[name]}")
        spec = JobSpec(command=("serve",), serve=Serve(name, self.ordinals[name]))
        self.say(
            f.ReplicasScaled(
                model=name, generation=1, add=(Replica(job_id, spec),), tenant=tenant, user="ada"
            )
        )
        self.waiting.append((job_id, 1, tenant, name))

    def submit(self, number: int) -> None:
        """Submit a user's job."""
        tenant = self.chance.choice(TENANTS)
        job_id = JobId(f"j{number}")
        spec = JobSpec(command=("true",), cpus_milli=1_000)
        user = self.chance.choice(USERS)
        self.say(f.JobSubmitted(job_id=job_id, spec=spec, tenant=tenant, user=user))
        self.decide()
        self.say(f.JobQueued(job_id=job_id))
        self.waiting.append((job_id, 1, tenant, ""))

    def place(self) -> None:
        """Start what waits, while there is room."""
        while self.waiting and len(self.running) < AT_ONCE and len(self.free) >= GPUS:
            job_id, attempt, tenant, model = self.waiting.popleft()
            taken = self.chance.sample(self.free, 1 if model else self.chance.randrange(1, 6))
            self.free = [each for each in self.free if each not in taken]
            share = self.chance.choice((100, 100, 50, 7))
            holds: dict[NodeId, tuple[GpuHold, ...]] = {}
            for node_id, uuid in taken:
                holds[node_id] = (*holds.get(node_id, ()), GpuHold(uuid, share))
            members = tuple(
                Member(node_id, self.incarnations[node_id], rank, gpus)
                for rank, (node_id, gpus) in enumerate(holds.items())
            )
            self.say(f.JobPlaced(job_id=job_id, attempt=attempt, members=members, port=1))
            for node_id in holds:
                self.say(f.JobStarted(job_id=job_id, attempt=attempt, node_id=node_id))
            self.running.append(Running(job_id, attempt, tenant, holds, model))

    def end(self, one: Running) -> None:
        """End an attempt well, and bill beside the log what its nodes measured."""
        self.running.remove(one)
        for node_id, gpus in one.holds.items():
            run_ms = self.chance.randrange(1, 5_000)
            self.expected_share_ms[one.tenant] += run_ms * sum(hold.share for hold in gpus)
            end = f.JobFinished(
                job_id=one.job_id,
                attempt=one.attempt,
                node_id=node_id,
                exit_code=0,
                run_ms=run_ms,
                use=self._use(run_ms, len(gpus)),
            )
            self.say(end, f.JobReleased(job_id=one.job_id, attempt=one.attempt, node_id=node_id))
            self.free += [(node_id, hold.uuid) for hold in gpus]
        self.say(f.JobClosed(job_id=one.job_id, attempt=one.attempt, outcome="completed"))
        if one.model:
            self._replica(one.model, one.tenant)

    def _use(self, run_ms: int, devices: int) -> DeviceUse | None:
        if self.chance.random() < 0.2:
            return None
        sampled_ms = self.chance.randrange(run_ms * devices + 1)
        busy_ms = self.chance.randrange(sampled_ms + 1)
        return DeviceUse(devices=devices, sampled_ms=sampled_ms, busy_ms=busy_ms, energy_mj=busy_ms)

    def lose_node(self) -> None:
        """Lose a node with all attempts there; they wait again, and the node comes back."""
        node_id = self.chance.choice(list(self.incarnations))
        gone = [one for one in self.running if node_id in one.holds]
        self.say(f.NodeLost(node_id=node_id, incarnation=self.incarnations[node_id]))
        for one in gone:
            self.running.remove(one)
            job = self.quota.cluster.jobs[one.job_id]
            placed_ms = (self.now_ns - job.placed_ns) // MS
            for other, gpus in one.holds.items():
                # The others are stopped: their nodes measured some time.
                run_ms = 0 if other == node_id else self.chance.randrange(1, 50)
                if run_ms:
                    end = f.JobFinished(
                        job_id=one.job_id,
                        attempt=one.attempt,
                        node_id=other,
                        exit_code=143,
                        run_ms=run_ms,
                    )
                    over = f.JobReleased(job_id=one.job_id, attempt=one.attempt, node_id=other)
                    self.say(end, over)
                    self.free += [(other, hold.uuid) for hold in gpus]
                charged_ms = run_ms or placed_ms
                self.expected_share_ms[one.tenant] += charged_ms * sum(hold.share for hold in gpus)
            fact = f.JobRequeued(
                job_id=one.job_id, attempt=one.attempt, reason="node_lost", counted=False
            )
            self.say(fact)
            self.waiting.append((one.job_id, one.attempt + 1, one.tenant, one.model))
        self.free = [each for each in self.free if each[0] != node_id]
        self._register(node_id)
        self.say(f.NodeReturned(node_id=node_id, incarnation=self.incarnations[node_id]))
        self.kills["node"] += 1

    def request(self) -> None:
        """Send a request to a replica through a gateway, which counts its part of the time."""
        serving = [one for one in self.running if one.model]
        if not serving:
            return
        one = self.chance.choice(serving)
        user = self.chance.choice(USERS)
        guest = self.chance.choice(TENANTS)
        use = ModelUse(
            tenant=guest,
            user=user,
            key_id=f"k-{guest}-{user}",
            owner=one.tenant,
            model=one.model,
            job_id=one.job_id,
            attempt=one.attempt,
            requests=1,
            input_tokens=self.chance.randrange(1_000),
            output_tokens=self.chance.randrange(500),
            share_ms=self.chance.randrange(2_000),
        )
        self.chance.choice(self.unrecorded).append(use)

    def flush(self, gateway: int) -> None:
        """Record what a gateway has counted."""
        uses, self.unrecorded[gateway] = tuple(self.unrecorded[gateway]), []
        if uses:
            self.say(f.ModelUsed(uses=uses), gateway=gateway)
            self.expected_requests += len(uses)
            self.expected_tokens += sum(use.input_tokens + use.output_tokens for use in uses)

    def kill_gateway(self) -> None:
        """Kill a gateway: it loses what it has not recorded."""
        gateway = self.chance.randrange(GATEWAYS)
        self.lost_requests += len(self.unrecorded[gateway])
        self.unrecorded[gateway] = []
        self.kills["gateway"] += 1

    def decide(self) -> None:
        """Let quota decide until nothing is due. It works ahead of the log, and may be killed with
        decisions that the log does not have.
        """
        while facts := decide(self.quota, self.now_ns):
            self.quota.apply_own(facts, self.now_ns)
            if self.chance.randrange(KILL_ONE_IN) == 0:
                self.kill_quota()
                continue
            self.quota.skip_own(*self._append(subjects.QUOTA, tuple(facts)))

    def kill_quota(self) -> None:
        """Kill quota. The next one has a snapshot and the log behind it."""
        cluster = snapshot.decode(self.kept)
        assert cluster is not None
        self.quota = State(cluster)
        for seq in range(self.kept_at, len(self.log)):
            self.quota.apply_entry(seq + 1, *self.log[seq])
        self.kept, self.kept_at = snapshot.encode(self.quota.cluster), len(self.log)
        self.kills["quota"] += 1

    def set_price(self) -> None:
        """Change the price of a model of GPU, or remove it."""
        fact = f.PriceSet(
            name=self.chance.choice(("h100", "a100", "any")),
            micros_per_hour=self.chance.randrange(9_000_000),
            currency=self.chance.choice(("EUR", "EUR", "USD")),
            removed=self.chance.random() < 0.1,
        )
        self.say(fact)

    def disturb(self) -> None:
        """Kill something or change a price, now and then."""
        if self.chance.randrange(KILL_ONE_IN) == 0:
            self.chance.choice((self.kill_quota, self.kill_gateway, self.lose_node))()
        if self.chance.randrange(PRICE_ONE_IN) == 0:
            self.set_price()

    def run(self, jobs: int, requests: int) -> None:
        """Live until so many jobs have ended and so many requests were sent."""
        for number in range(jobs):
            self.now_ns += self.chance.randrange(1, 3_000) * MS
            self.submit(number)
            self.place()
            for _ in range(requests * (number + 1) // jobs - requests * number // jobs):
                self.request()
            if self.chance.random() < 0.2:
                self.flush(self.chance.randrange(GATEWAYS))
            self.disturb()
            while len(self.running) > AT_ONCE // 2:
                self.end(self.chance.choice(self.running))
            self.decide()
        for gateway in range(GATEWAYS):
            self.flush(gateway)
        while jobs_left := [one for one in self.running if not one.model]:
            for one in jobs_left:
                self.end(one)
            self.place()
        for one in list(self.running):
            self.end(one)
        self.decide()

    def bill(self, *further: str) -> Bill:
        """Return the bill of all time, as audit would read it from the archive."""
        assert set(further) <= set(FURTHER)
        bill = Bill("", further)
        for _, commit in self.log:
            for fact in commit.facts:
                if f.kind_of(fact) in KINDS:
                    bill.add(fact, commit.at_ns)
        return bill


def _model_spec() -> ModelSpec:
    return ModelSpec(command=("serve",), replicas=REPLICAS)


def differences(world: UsageWorld) -> dict[str, int]:
    """Return, for each sum of the bill, how far it is from what it must be."""
    found: dict[str, int] = {}
    cluster = world.quota.cluster
    charges = [
        fact for _, commit in world.log for fact in commit.facts if isinstance(fact, f.UsageCharged)
    ]
    attempts = Counter((fact.job_id, fact.attempt) for fact in charges)
    found["attempts charged twice"] = sum(count - 1 for count in attempts.values())
    found["attempts not charged"] = len(cluster.uncharged)
    for further in ((), ("gpu",), ("job",), ("gpu", "job", "day"), ("hour",), ("month", "gpu")):
        lines = list(world.bill(*further).lines.values())
        by = "+".join(further) or "nothing more"
        for tenant in TENANTS:
            own = [line for line in lines if line.payer == tenant]
            share_ms = sum(line.share_ms for line in own)
            found[f"GPU time of {tenant} by {by}"] = share_ms - world.expected_share_ms[tenant]
            used = cluster.tenants[tenant].used_share_ms
            found[f"GPU time of {tenant} and its budget by {by}"] = share_ms - used
            for currency in ("EUR", "USD"):
                cost = sum(line.cost_micros for line in own if line.currency == currency)
                due = sum(
                    part.cost_micros
                    for fact in charges
                    for part in fact.parts
                    if fact.tenant == tenant and part.currency == currency
                )
                found[f"{currency} of {tenant} by {by}"] = cost - due
        found[f"requests by {by}"] = sum(line.requests for line in lines) - world.expected_requests
        found[f"tokens by {by}"] = (
            sum(line.input_tokens + line.output_tokens for line in lines) - world.expected_tokens
        )
        found[f"busy time by {by}"] = sum(line.busy_share_ms for line in lines) - sum(
            fact.busy_share_ms for fact in charges
        )
        found[f"energy by {by}"] = sum(line.energy_mj for line in lines) - sum(
            max(0, fact.use.energy_mj) for fact in charges if fact.use is not None
        )
        found[f"lines with more busy and idle time than time by {by}"] = sum(
            line.busy_share_ms + line.idle_share_ms > line.share_ms for line in lines
        )
    return found
