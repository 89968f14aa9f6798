"""Answers agents that are about to start a job which names secrets: only the node that holds a living member of that very attempt.

The fold says who that is, and of which tenant the job is; the values are opened here and sealed to the agent's own key. Held by
tests/integration/test_secrets.py.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from libs.common import job_life, subjects
from libs.common.bus import Bus
from libs.common.cluster import Cluster, Job
from libs.common.errors import Corrupt, Refused, Unavailable
from libs.common.model import NodeId
from libs.common.secret_fold import secret_key
from libs.common.secret_messages import SecretAnswer, SecretAsk
from services.api_gateway.vault import Vault, sealed_to

# An agent may hear of its order before this gateway has folded the placement.
PLACED_WAIT_S: Final = 2.0
LOOK_S: Final = 0.02

logger = logging.getLogger(__name__)


class SecretAnswers:
    """Of one gateway."""

    def __init__(self, cluster: Callable[[], Cluster], bus: Bus, vault: Vault) -> None:
        self.cluster = cluster
        self.bus = bus
        self.vault = vault

    async def listen(self) -> None:
        await self.bus.subscribe(subjects.ask_secrets("*"), self._on_ask, concurrent=True)

    async def _on_ask(self, subject: str, data: bytes) -> bytes:
        node_id = NodeId(subject.rpartition(".")[2])
        try:
            ask = msgspec.msgpack.decode(data, type=SecretAsk)
            return msgspec.msgpack.encode(SecretAnswer(await self._sealed(ask, node_id)))
        except (msgspec.DecodeError, Refused, Corrupt, Unavailable) as error:
            logger.warning("secrets were not given to node %s: %s", node_id, error)
            return msgspec.msgpack.encode(SecretAnswer(refused=str(error)))

    async def _sealed(self, ask: SecretAsk, node_id: NodeId) -> bytes:
        job = await self._placed(ask, node_id)
        values = {variable: await self._value(job, name) for variable, name in job.spec.secrets.items()}
        return sealed_to(ask.public_key, values)

    async def _placed(self, ask: SecretAsk, node_id: NodeId) -> Job:
        """The job, if its present attempt has a living member on that node."""
        for _ in range(int(PLACED_WAIT_S / LOOK_S)):
            job = self.cluster().jobs.get(ask.job_id)
            if job is not None and job.attempt == ask.attempt and node_id in job.members:
                break
            await asyncio.sleep(LOOK_S)
        else:
            raise Refused(f"attempt {ask.attempt} of {ask.job_id} is not on node {node_id}")
        if job.members[node_id].state in job_life.MEMBER_OVER:
            raise Refused(f"attempt {ask.attempt} of {ask.job_id} is over on node {node_id}")
        return job

    async def _value(self, job: Job, name: str) -> str:
        known = self.cluster().secrets.get(secret_key(job.tenant, name))
        value = await self.vault.get(job.tenant, name) if known is not None else None
        if value is None:
            raise Refused(f"tenant {job.tenant} has no secret {name}: muster secret set {name}")
        return value
