"""Sends secrets to agents that are about to start a job: only to a node with a live member of that
attempt.

The fold tells which node that is and which tenant the job belongs to. The gateway opens the values
and seals them to the agent's own key. Tests: tests/integration/test_secrets.py.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from libs.common import subjects
from libs.common.container_spec import registry_of, registry_secret
from libs.common.errors import Corrupt, Refused, Unavailable
from libs.common.facts import UNDECODABLE
from libs.common.folds.secret_fold import secret_key
from libs.common.messages.secret_messages import REGISTRY, REPLICA_KEY, SecretAnswer, SecretAsk
from libs.common.model import NodeId
from libs.common.state.cluster import Cluster, Job
from libs.common.transport.bus import Bus
from libs.common.transport.per_sender import PLACES, Places
from services.api_gateway.agents.placed import placed
from services.api_gateway.secrets.vault import Vault, sealed_to

# How often the gateway looks for a value that was replaced, and how long it waits in between.
LOOKS: Final = 10
LOOK_S: Final = 0.05

logger = logging.getLogger(__name__)


class SecretAnswers:
    """Answers the secret questions of one gateway's agents."""

    def __init__(self, cluster: Callable[[], Cluster], bus: Bus, vault: Vault) -> None:
        self.cluster = cluster
        self.bus = bus
        self.vault = vault

    async def listen(self) -> None:
        await self.bus.subscribe(
            subjects.ask_secrets("*"), Places(self._on_ask), concurrent=True, places=PLACES
        )

    async def _on_ask(self, subject: str, data: bytes) -> bytes:
        node_id = NodeId(subject.rpartition(".")[2])
        try:
            ask = msgspec.msgpack.decode(data, type=SecretAsk)
            return msgspec.msgpack.encode(SecretAnswer(await self._sealed(ask, node_id)))
        except (*UNDECODABLE, Refused, Corrupt, Unavailable) as error:
            logger.warning("secrets were not given to node %s: %s", node_id, error)
            return msgspec.msgpack.encode(SecretAnswer(refused=str(error)))

    async def _sealed(self, ask: SecretAsk, node_id: NodeId) -> bytes:
        job = await placed(self.cluster, ask.job_id, ask.attempt, node_id)
        if ask.registry:
            name = registry_secret(registry_of(job.spec.image))
            known = secret_key(job.tenant, name) in self.cluster().secrets
            login = {REGISTRY: await self._value(job, name)} if known else {}
            return sealed_to(ask.public_key, login)
        values = self._replica_key(job)
        if not ask.replica_key:
            values |= {
                variable: await self._value(job, name)
                for variable, name in job.spec.secrets.items()
            }
        return sealed_to(ask.public_key, values)

    def _replica_key(self, job: Job) -> dict[str, str]:
        is_keyed = job.spec.serve is not None and job.spec.serve.keyed
        return {REPLICA_KEY: self.vault.replica_key(job.job_id, job.attempt)} if is_keyed else {}

    async def _value(self, job: Job, name: str) -> str:
        """Return the secret's value.

        If the value was replaced a moment ago, wait until this gateway has folded the new fact.
        """
        for _ in range(LOOKS):
            known = self.cluster().secrets.get(secret_key(job.tenant, name))
            if known is None:
                break
            value = await self.vault.get(job.tenant, name, known.value_id)
            if value is not None:
                return value
            await asyncio.sleep(LOOK_S)
        raise Refused(
            f"tenant {job.tenant} has no secret {name}: set it with muster secret set {name}"
        )
