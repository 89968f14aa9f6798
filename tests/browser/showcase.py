"""A cluster with something of everything, for pictures and for tests of the pages: nodes of three
kinds, tenants, jobs in every state, fractions, MIG instances, faults, and a model.
"""

import random
from collections.abc import Sequence
from typing import Final

from libs.common import facts as f
from libs.common import subjects
from libs.common.facts import AnyFact
from libs.common.model import Gpu, GpuHold, GpuId, JobId, JobSpec, Member, NodeId, TenantId
from tests.integration.gateway_world import GIB, World

KINDS: Final = (("H100", 80), ("A100", 40), ("MI300X", 192))
TENANTS: Final = (
    ("research", ("ada", "lin"), 96),
    ("vision", ("grace", "kofi"), 48),
    ("speech", ("mei",), 32),
    ("robotics", ("omar", "ines"), 24),
)
NAMES: Final = (
    "llama-pretrain",
    "sft-7b",
    "eval-mmlu",
    "tokenise",
    "diffusion-xl",
    "asr-finetune",
    "grasp-policy",
    "embeddings",
    "sweep-lr",
    "distill-3b",
)
GPUS: Final = 8
COMMIT_FACTS: Final = 200


class Showcase:
    """The facts of one cluster, written in an order that every fold accepts."""

    def __init__(self, world: World, nodes: int = 24, seed: int = 7) -> None:
        self.world = world
        self.writers = world.writers
        self.dice = random.Random(seed)
        self.nodes = [f"node-{number}" for number in range(1, nodes + 1)]
        self.free = {node: [100] * GPUS for node in self.nodes}
        self.number = 0
        self.jobs: list[str] = []

    async def fill(self, jobs: int = 60, waiting: int = 14, ended: int = 40) -> None:
        await self.writers.begin_term()
        for node in self.nodes:
            await self.register(node)
        for name, _, gpus in TENANTS:
            limit = f.TenantSet(tenant=TenantId(name), max_gpu_share=gpus * 100, gpu_hours=20_000)
            await self.writers.write(subjects.gateway("seed"), limit)
        for _ in range(ended):
            await self.ended_job()
        for _ in range(jobs):
            await self.running_job()
        for _ in range(waiting):
            await self.waiting_job()
        await self.faults()
        await self.world.settle()

    async def register(self, node: str) -> None:
        kind, memory = KINDS[self.nodes.index(node) * len(KINDS) // len(self.nodes)]
        divided = node == self.nodes[-1]
        gpus = tuple(
            Gpu(
                uuid=GpuId(f"GPU-{node}-{index}"),
                index=index,
                vendor="amd" if kind.startswith("MI") else "nvidia",
                model=kind,
                memory_bytes=memory * GIB,
                mig=divided and index < 2,
            )
            for index in range(GPUS)
        )
        fact = f.NodeRegistered(
            node_id=NodeId(node), incarnation=1, address="10.0.0.1", gpus=gpus, takes_controls=True
        )
        await self.writers.write(subjects.node(node), fact, epoch=1)

    async def submit(self, spec: JobSpec, tenant: str, user: str) -> JobId:
        self.number += 1
        job_id = JobId(f"j{self.dice.getrandbits(40):010x}")
        self.jobs.append(job_id)
        fact = f.JobSubmitted(job_id=job_id, spec=spec, tenant=TenantId(tenant), user=user)
        await self.writers.write(subjects.gateway("seed"), fact)
        await self.writers.admit(job_id)
        return job_id

    def drawn(self, **fields: object) -> tuple[JobSpec, str, str]:
        tenant, users, _ = self.dice.choice(TENANTS)
        name = f"{self.dice.choice(NAMES)}-{self.number}"
        command = ("python", "train.py", "--name", name)
        return JobSpec(command=command, name=name, **fields), tenant, self.dice.choice(users)

    async def running_job(self) -> None:
        share = self.dice.choice((100, 100, 100, 50, 25))
        gpus = 1 if share < 100 else self.dice.choice((1, 2, 4, 8))
        place = self.place(gpus, share)
        if place is None:
            return
        spec, tenant, user = self.drawn(gpus=gpus, gpu_share=share)
        job_id = await self.submit(spec, tenant, user)
        await self.writers.queue_admitted(job_id)
        node, holds = place
        await self.start(job_id, node, holds)

    async def start(self, job_id: JobId, node: str, holds: Sequence[GpuHold]) -> None:
        member = Member(NodeId(node), 1, 0, tuple(holds))
        placed = f.JobPlaced(job_id=job_id, attempt=1, members=(member,), port=29_500)
        await self.writers.schedule(placed)
        await self.writers.start(job_id, node)

    def place(self, gpus: int, share: int) -> tuple[str, list[GpuHold]] | None:
        """Take so much of devices of one node, if a node has it."""
        for node in self.dice.sample(self.nodes[:-1], len(self.nodes) - 1):
            fit = [index for index, free in enumerate(self.free[node]) if free >= share]
            if len(fit) >= gpus:
                for index in fit[:gpus]:
                    self.free[node][index] -= share
                return node, [GpuHold(GpuId(f"GPU-{node}-{i}"), share) for i in fit[:gpus]]
        return None

    async def ended_job(self) -> None:
        spec, tenant, user = self.drawn(gpus=1)
        job_id = await self.submit(spec, tenant, user)
        await self.writers.queue_admitted(job_id)
        node = self.dice.choice(self.nodes[:-1])
        await self.start(job_id, node, [GpuHold(GpuId(f"GPU-{node}-0"))])
        bad = self.dice.random() < 0.2
        await self.writers.finish(job_id, node, exit_code=1 if bad else 0)
        await self.writers.close(job_id, "failed" if bad else "completed", 1 if bad else 0)

    async def waiting_job(self) -> None:
        spec, tenant, user = self.drawn(
            gpus=8, nodes=self.dice.choice((2, 4)), priority=self.dice.choice((50, 50, 70))
        )
        job_id = await self.submit(spec, tenant, user)
        await self.writers.queue_admitted(job_id)

    async def faults(self) -> None:
        first, second, third = self.nodes[2], self.nodes[9 % len(self.nodes)], self.nodes[-2]
        facts: list[tuple[str, AnyFact]] = [
            (first, self.fault(first, 3, "degraded", "thermal", "HBM at 97 C, clocks reduced")),
            (second, self.fault(second, 6, "offline", "xid", "XID 79: GPU has fallen off the bus")),
            (second, self.fault(second, 1, "offline", "quarantined", "memory of a job is left")),
        ]
        for node, fact in facts:
            await self.writers.write(subjects.node(node), fact, epoch=1)
        for index in range(GPUS):
            drained = f.GpuServiceSet(uuid=GpuId(f"GPU-{third}-{index}"), service="draining")
            await self.writers.write(subjects.gateway("seed"), drained)

    def fault(self, node: str, index: int, health: str, reason: str, detail: str) -> f.GpuFaulted:
        uuid = GpuId(f"GPU-{node}-{index}")
        return f.GpuFaulted(
            node_id=NodeId(node), uuid=uuid, health=health, reason=reason, detail=detail
        )
