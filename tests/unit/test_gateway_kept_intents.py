"""Requests to keep a tier of a model: what is recorded, and what is refused in which words."""

from typing import Any

import pytest

from libs.common.errors import Refused
from libs.common.facts import ModelKeepDropped, ModelKeepRequested
from libs.common.model import NodeId, TenantId
from libs.common.model_spec import ModelSpec
from libs.common.state.cluster import Cluster, Model, Node
from libs.common.state.kept import Kept
from services.api_gateway.intents import kept_intents as intents

MODEL = Model("chat", TenantId("physics"), "ada", ModelSpec(command=("serve",)), 7, 1)
DIGEST = "ab" * 32


def cluster() -> Cluster:
    return Cluster(
        nodes={
            NodeId("a"): Node(NodeId("a"), "healthy", keeps=True),
            NodeId("old"): Node(NodeId("old"), "healthy"),
        }
    )


def keep(tier: str = "host", **body: Any) -> ModelKeepRequested:
    return intents.keeping(cluster(), MODEL, tier, body or None)


def test_a_request_records_what_to_keep_for_the_tenant_of_the_model() -> None:
    files = {"one.bin": DIGEST}
    made = keep(weights="/models/chat/", files=files, node_list=["a"], user="bob")
    assert made == ModelKeepRequested(
        model="chat",
        tier="host",
        node_list=(NodeId("a"),),
        weights="/models/chat",
        files=files,
        tenant=TenantId("physics"),
        user="bob",
    )
    assert keep("artefact").user == "ada"
    assert keep("standby").size_bytes == intents.STANDBY_BYTES
    assert keep("standby", size_bytes=9).size_bytes == 9
    made = keep("gpu", size_bytes=9, weights="/m", files=files)
    assert (made.size_bytes, made.weights, made.files) == (9, "/m", files)


def test_weights_on_devices_are_refused_for_a_model_with_mig_instances() -> None:
    spec = ModelSpec(command=("serve",), mig_profile="1g.10gb")
    model = Model("small", TenantId("physics"), "ada", spec, 7, 1)
    with pytest.raises(Refused, match="the replicas of small have MIG instances"):
        intents.keeping(cluster(), model, "gpu", {"weights": "/m", "size_bytes": 1})


def test_nothing_is_kept_for_a_model_whose_replicas_run_in_containers() -> None:
    spec = ModelSpec(command=("serve",), image="vllm:1")
    model = Model("boxed", TenantId("physics"), "ada", spec, 7, 1)
    with pytest.raises(Refused, match="the replicas of boxed run in containers"):
        intents.keeping(cluster(), model, "artefact", {})


def test_nothing_is_kept_for_a_model_whose_replicas_have_several_nodes() -> None:
    spec = ModelSpec(command=("serve",), nodes=2)
    model = Model("large", TenantId("physics"), "ada", spec, 7, 1)
    with pytest.raises(Refused, match="each replica of large has 2 nodes"):
        intents.keeping(cluster(), model, "host", {})


@pytest.mark.parametrize(
    ("tier", "body", "words"),
    [
        ("attic", {}, "tier: 'attic' is not known: give one of artefact, host, gpu, standby"),
        ("host", {}, "weights: missing"),
        ("host", {"weights": "models"}, "give an absolute path"),
        ("host", {"weights": "/models/../etc"}, "give an absolute path"),
        ("host", {"weights": "/m", "nodes": 2, "node_list": ["a"]}, "not both"),
        ("host", {"weights": "/m", "nodes": 5_000}, "nodes: 5000 is out of bounds"),
        ("host", {"weights": "/m", "node_list": ["x"]}, "node 'x' does not exist"),
        ("host", {"weights": "/m", "node_list": ["old"]}, "older than resident data"),
        ("host", {"weights": "/m", "files": {"one": "xyz"}}, "'xyz' of 'one' is not a SHA-256"),
        ("host", {"weights": "/m", "files": dict.fromkeys(map(str, range(257)), DIGEST)}, "256"),
        ("standby", {"nodes": 1}, "nodes: the tier standby is beside each replica"),
        ("standby", {"weights": "/m"}, "weights: the tier standby is beside each replica"),
        ("gpu", {"size_bytes": 1}, "weights: missing: the tier gpu needs the folder"),
        ("gpu", {"weights": "/m"}, "size_bytes: missing: the tier gpu needs the memory"),
        ("gpu", {"weights": "/m", "size_bytes": 1, "nodes": 1}, "nodes: the tier gpu is beside"),
        ("artefact", {"size_bytes": 1}, "size_bytes: the tier artefact is measured"),
        ("host", {"weight": "/m"}, "did you mean 'weights'"),
    ],
)
def test_a_request_that_cannot_be_kept_is_refused(
    tier: str, body: dict[str, Any], words: str
) -> None:
    with pytest.raises(Refused, match=words.replace("(", r"\(")):
        keep(tier, **body)


def test_a_drop_records_the_tier() -> None:
    kept = Kept("chat", "host", TenantId("physics"), "ada", 9)
    assert intents.dropping(MODEL, kept, {"user": "bob"}) == ModelKeepDropped(
        model="chat", tier="host", user="bob"
    )
    known = cluster()
    assert intents.kept_of(known, MODEL, "host") is None
    known.kept[kept.key] = kept
    assert intents.kept_of(known, MODEL, "host") is kept
