"""Requests to keep a tier of a model, or to drop it.

Pure. Whether nodes have the bytes is the scheduler's decision. Tests:
tests/unit/test_gateway_kept_intents.py.
"""

import re
from typing import Final

import msgspec

from libs.common.errors import Refused
from libs.common.facts import ModelKeepDropped, ModelKeepRequested, check_fact_size
from libs.common.life import kept_life
from libs.common.model import NodeId
from libs.common.state.cluster import Cluster, Model
from libs.common.state.kept import Kept, kept_key
from services.api_gateway.intents import job_intents
from services.api_gateway.intents.fields import check_one_of, check_range, convert, names_of

NODES_MAX: Final = 1_024
FILES_MAX: Final = 256
PATH_MAX: Final = 1_024
SIZE_MAX: Final = 1 << 50
SHA256: Final = re.compile(r"[0-9a-f]{64}")
DROP_FIELDS: Final = ("user",)
# A parked engine takes 2 to 3 GiB of each device.
STANDBY_BYTES: Final = 3 << 30
ON_DEVICES: Final = (kept_life.GPU, kept_life.STANDBY)
RANGES: Final = (("nodes", 0, NODES_MAX), ("size_bytes", 0, SIZE_MAX))


class KeepBody(msgspec.Struct, frozen=True):
    """The body of a request to keep a tier; the fields are those of ModelKeepRequested."""

    nodes: int = 0
    node_list: tuple[NodeId, ...] = ()
    weights: str = ""
    files: dict[str, str] = {}
    size_bytes: int = 0
    user: str = ""


FIELDS: Final = names_of(KeepBody)


def keeping(cluster: Cluster, model: Model, tier: str, body: object) -> ModelKeepRequested:
    """Return the fact for `PUT /v1/deployments/{name}/kept/{tier}`. Raises Refused."""
    check_one_of("tier", tier, kept_life.TIERS)
    if model.spec.image:
        raise Refused(
            f"image: the replicas of {model.name} run in containers, which have no part in what a "
            "node keeps: redeploy the model without an image first"
        )
    if model.spec.nodes > 1:
        raise Refused(
            f"nodes: each replica of {model.name} has {model.spec.nodes} nodes, and what a node "
            "keeps is for replicas on one node: redeploy the model with 1 node first"
        )
    values = job_intents.body_fields({} if body is None else body, FIELDS)
    user = job_intents.take_user(values)
    fields = convert(values, KeepBody)
    for name, low, high in RANGES:
        check_range(name, getattr(fields, name), low, high)
    if fields.nodes and fields.node_list:
        raise Refused("nodes: give either nodes or node_list, not both")
    _check_tier(fields, tier)
    _check_on_devices(model, fields, tier)
    _check_nodes(cluster, fields.node_list)
    _check_weights(fields, tier)
    made = ModelKeepRequested(
        model=model.name,
        tier=tier,
        nodes=fields.nodes,
        node_list=fields.node_list,
        weights=fields.weights.rstrip("/"),
        files=fields.files,
        size_bytes=fields.size_bytes or (STANDBY_BYTES if tier == kept_life.STANDBY else 0),
        tenant=model.tenant,
        user=user or model.user,
    )
    check_fact_size(made)
    return made


def dropping(model: Model, kept: Kept, body: object) -> ModelKeepDropped:
    """Return the fact for `DELETE /v1/deployments/{name}/kept/{tier}`. Raises Refused."""
    values = job_intents.body_fields({} if body is None else body, DROP_FIELDS)
    return ModelKeepDropped(model=model.name, tier=kept.tier, user=job_intents.take_user(values))


def kept_of(cluster: Cluster, model: Model, tier: str) -> Kept | None:
    """Return the request for this tier of the model; None if there is none."""
    return cluster.kept.get(kept_key(model.name, tier))


def _check_tier(fields: KeepBody, tier: str) -> None:
    """Raise Refused for fields that the tier does not have."""
    if tier not in ON_DEVICES:
        if fields.size_bytes:
            raise Refused(f"size_bytes: the tier {tier} is measured: leave the field out")
        return
    names = ("nodes", "node_list", *(("weights", "files") if tier == kept_life.STANDBY else ()))
    for name in names:
        if getattr(fields, name):
            raise Refused(f"{name}: the tier {tier} is beside each replica: leave the field out")


def _check_on_devices(model: Model, fields: KeepBody, tier: str) -> None:
    """Raise Refused if this model cannot have weights on its devices."""
    if tier != kept_life.GPU:
        return
    if not fields.size_bytes:
        raise Refused(
            "size_bytes: missing: the tier gpu needs the memory of each device that the weights "
            "may use, for example 20 GiB (21474836480)"
        )
    if model.spec.mig_profile:
        raise Refused(
            f"tier: the replicas of {model.name} have MIG instances, whose memory the node cannot "
            "share: deploy the model on whole devices or fractions"
        )


def _check_nodes(cluster: Cluster, nodes: tuple[NodeId, ...]) -> None:
    for node_id in nodes:
        node = cluster.nodes.get(node_id)
        if node is None:
            raise Refused(
                f"node_list: node {node_id[:64]!r} does not exist: GET /v1/nodes lists the nodes"
            )
        if not node.keeps:
            raise Refused(
                f"node_list: the agent of node {node_id} (version {node.version or 'unknown'}) is "
                "older than resident data: upgrade it"
            )


def _check_weights(fields: KeepBody, tier: str) -> None:
    """Raise Refused unless the weights and their hashes fit the tier."""
    if tier in (kept_life.HOST, kept_life.GPU) and not fields.weights:
        raise Refused(
            f"weights: missing: the tier {tier} needs the folder with the model's weight files, "
            "for example /models/llama"
        )
    if fields.weights and (
        not fields.weights.startswith("/")
        or len(fields.weights) > PATH_MAX
        or not fields.weights.isprintable()
        or "/../" in f"{fields.weights}/"
    ):
        raise Refused(f"weights: {fields.weights[:64]!r} is not valid: give an absolute path")
    if len(fields.files) > FILES_MAX:
        raise Refused(f"files: {len(fields.files)} are too many: give at most {FILES_MAX}")
    for path, digest in fields.files.items():
        if not SHA256.fullmatch(digest):
            raise Refused(
                f"files: {digest[:64]!r} of {path[:64]!r} is not a SHA-256: give 64 hexadecimal "
                "digits, as sha256sum prints them"
            )
