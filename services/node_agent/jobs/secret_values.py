"""Asks a gateway for the secrets of a job that is about to start.

The agent opens the answer with a key that serves this one question, and keeps the values in memory
only. Tests: tests/integration/test_secrets.py.
"""

import logging

import msgspec
from nacl.exceptions import CryptoError
from nacl.public import PrivateKey, SealedBox

from libs.common import subjects
from libs.common.container_spec import registry_of, registry_secret
from libs.common.errors import Refused
from libs.common.messages import StartOrder
from libs.common.messages.secret_messages import (
    REGISTRY,
    REPLICA_KEY,
    RegistryLogin,
    SecretAnswer,
    SecretAsk,
)
from libs.common.model import AttemptRef, NodeId
from libs.common.transport.bus import Bus
from services.node_agent.jobs.gateways import ASK_TRIES, ask
from services.node_agent.runtimes.engine import credentials_of

logger = logging.getLogger(__name__)


async def secrets_of(order: StartOrder, node_id: NodeId, bus: Bus) -> dict[str, str]:
    """Return the values of the job's secrets by variable, and the key of a replica as REPLICA_KEY.

    Raises Refused.
    """
    private = PrivateKey.generate()
    question = SecretAsk(order.job_id, order.attempt, bytes(private.public_key))
    found = await _asked(question, private, node_id, bus)
    serve = order.spec.serve
    if serve is not None and serve.keyed and not found.get(REPLICA_KEY):
        raise Refused("cannot get its replica key: the gateway is older than this agent")
    return found


async def replica_key_of(ref: AttemptRef, node_id: NodeId, bus: Bus) -> str | None:
    """Return the key of a replica's attempt; None if no gateway gives it. Asks once."""
    private = PrivateKey.generate()
    question = SecretAsk(ref.job_id, ref.attempt, bytes(private.public_key), replica_key=True)
    try:
        return (await _asked(question, private, node_id, bus, tries=1)).get(REPLICA_KEY)
    except Refused as error:
        logger.warning("replica %s is probed without its key: %s", ref.job_id, error)
        return None


async def registry_credentials(order: StartOrder, node_id: NodeId, bus: Bus) -> str:
    """Return the engine's header with the tenant's credentials for the registry of the job's image.

    It is empty if the tenant has none for that registry. Raises Refused.
    """
    if not order.registry:
        return ""
    private = PrivateKey.generate()
    question = SecretAsk(order.job_id, order.attempt, bytes(private.public_key), registry=True)
    found = (await _asked(question, private, node_id, bus)).get(REGISTRY)
    if found is None:
        return ""
    try:
        login = msgspec.json.decode(found, type=RegistryLogin)
    except msgspec.DecodeError as error:
        host = registry_of(order.spec.image)
        raise Refused(
            f"cannot get the credentials for its registry: secret {registry_secret(host)} has no "
            f"user name and password: set it with `muster secret set --registry {host} --username "
            "NAME`"
        ) from error
    return credentials_of(registry_of(order.spec.image), login.username, login.password)


async def _asked(
    question: SecretAsk, private: PrivateKey, node_id: NodeId, bus: Bus, tries: int = ASK_TRIES
) -> dict[str, str]:
    what = "the credentials for its registry" if question.registry else "its secrets"
    try:
        answer = await ask(subjects.ask_secrets(node_id), question, SecretAnswer, bus, tries)
    except Refused as error:
        raise Refused(f"cannot get {what}: {error}") from error
    if answer.refused:
        raise Refused(f"cannot get {what}: {answer.refused}")
    try:
        return msgspec.msgpack.decode(
            SealedBox(private).decrypt(answer.sealed), type=dict[str, str]
        )
    except (CryptoError, msgspec.DecodeError) as error:
        raise Refused(
            f"cannot get {what}: the answer does not open with this node's key"
        ) from error
