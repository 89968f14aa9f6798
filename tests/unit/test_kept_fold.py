"""Resident data in the fold: its requests, its entries, and their bytes in the ledger."""

from typing import Any

import msgspec
import pytest

from libs.common import facts as f
from libs.common.life import kept_life
from libs.common.model import GpuId, JobId, JobSpec, NodeId, Serve, TenantId, standby_port
from libs.common.model_spec import ModelSpec, Replica
from libs.common.state import ledger
from libs.common.state.cluster import ready_replicas
from libs.common.state.kept import Kept, KeptEntry
from tests.history import History, gpu, member, registered

GIB = 1 << 30
SECOND = standby_port(20_000)
NODE = NodeId("n")
FILES = {"model.safetensors": "ab" * 32}


def history(*facts: f.AnyFact) -> History:
    made = History()
    node = registered("n", "g1")
    made.say(
        f.NodeRegistered(
            node_id=NODE,
            incarnation=1,
            address="a",
            gpus=node.gpus,
            memory_bytes=64 * GIB,
            keeps=True,
        )
    )
    made.say(f.ModelDeployed(name="chat", spec=ModelSpec(command=("serve",))))
    for fact in facts:
        made.say(fact)
    return made


def wish(tier: str = "host", **fields: Any) -> f.ModelKeepRequested:
    return f.ModelKeepRequested(model="chat", tier=tier, **fields)


def kept_in(made: History, tier: str = "host") -> Kept:
    return made.cluster.kept[f"chat/{tier}"]


def entry_in(made: History, tier: str = "host") -> KeptEntry:
    return kept_in(made, tier).entries[NODE]


def names(made: History, tier: str = "host") -> dict[str, Any]:
    request = kept_in(made, tier).request
    return {"model": "chat", "tier": tier, "node_id": NODE, "request": request}


def observed(made: History, state: str, tier: str = "host", **fields: Any) -> f.KeptObserved:
    number = fields.pop("number", 1)
    return f.KeptObserved(**names(made, tier), number=number, state=state, **fields)


def filled() -> History:
    """An entry with 8 GiB of the node's memory, being filled."""
    made = history(wish())
    made.say(f.KeptPlaced(**names(made), number=1))
    made.say(observed(made, kept_life.MEASURED, size_bytes=8 * GIB))
    made.say(f.KeptGranted(**names(made), host_bytes=8 * GIB))
    return made


def test_an_entry_is_requested_measured_granted_and_ready() -> None:
    made = filled()
    assert entry_in(made).state == kept_life.FILLING
    assert made.cluster.nodes[NODE].kept == {"chat/host": 8 * GIB}
    made.say(observed(made, kept_life.READY, size_bytes=8 * GIB, content="cd", files=FILES))
    assert (entry_in(made).state, kept_in(made).files) == (kept_life.READY, FILES)
    assert ledger.free_host_bytes(made.cluster, NODE) == 56 * GIB


def test_a_node_whose_files_differ_from_the_recorded_ones_has_failed_and_has_no_bytes() -> None:
    made = history(wish(files=FILES))
    made.say(f.KeptPlaced(**names(made), number=1))
    made.say(f.KeptGranted(**names(made), host_bytes=GIB))
    made.say(observed(made, kept_life.READY, files={"model.safetensors": "00" * 32}))
    assert entry_in(made).state == kept_life.FAILED
    assert "differ" in entry_in(made).detail
    assert made.cluster.nodes[NODE].kept == {}


def test_a_failed_or_evicted_entry_has_no_bytes() -> None:
    made = filled()
    made.say(observed(made, kept_life.FAILED, detail="no room"))
    assert made.cluster.nodes[NODE].kept == {}
    made = filled()
    made.say(f.KeptEvicted(**names(made), reason="room"))
    assert (entry_in(made).state, entry_in(made).detail) == (kept_life.EVICTED, "room")
    assert made.cluster.nodes[NODE].kept == {}


def test_a_dropped_request_leaves_nothing() -> None:
    made = filled()
    made.say(f.ModelKeepDropped(model="chat", tier="host"))
    assert made.cluster.kept == {}
    assert made.cluster.nodes[NODE].kept == {}
    assert not made.say(f.ModelKeepDropped(model="chat", tier="host"))


def test_a_new_request_replaces_the_earlier_one_with_its_entries() -> None:
    made = filled()
    before = names(made)
    made.say(wish(nodes=2))
    assert (kept_in(made).nodes, kept_in(made).entries) == (2, {})
    assert made.cluster.nodes[NODE].kept == {}
    assert is_void(made, f.KeptPlaced(**before, number=1))


def is_void(made: History, fact: f.AnyFact) -> bool:
    """Return whether a decision that was overtaken leaves the state as it was."""
    before = msgspec.to_builtins(made.cluster)
    made.say(fact)
    after = msgspec.to_builtins(made.cluster)
    return all(after[name] == before[name] for name in ("kept", "nodes", "gpus"))


def test_facts_without_their_entry_change_nothing() -> None:
    made = history()
    nothing = {"model": "chat", "tier": "host", "node_id": NODE, "request": 1}
    assert is_void(made, f.KeptPlaced(**nothing, number=1))
    assert is_void(made, f.KeptGranted(**nothing, host_bytes=1))
    assert is_void(made, f.KeptEvicted(**nothing))
    assert not made.say(wish(tier="attic"))
    made.say(wish())
    assert is_void(made, f.KeptPlaced(**(names(made) | {"node_id": NodeId("x")}), number=1))
    assert is_void(made, f.KeptPlaced(**names(made), number=2))
    made.say(f.KeptPlaced(**names(made), number=1))
    assert is_void(made, f.KeptPlaced(**names(made), number=2))
    assert is_void(made, f.KeptGranted(**names(made), host_bytes=-1))
    assert not made.say(observed(made, "unheard"))


def test_a_report_about_an_earlier_placement_is_void() -> None:
    made = filled()
    made.say(f.KeptEvicted(**names(made)))
    made.say(f.KeptPlaced(**names(made), number=2))
    assert not made.say(observed(made, kept_life.READY, number=1))
    made.say(observed(made, kept_life.MEASURED, number=2, size_bytes=GIB))
    assert entry_in(made).size_bytes == GIB


def test_device_bytes_are_granted_again_when_more_devices_are_meant() -> None:
    made = history(wish("standby"))
    made.say(f.KeptPlaced(**names(made, "standby"), number=1))
    made.say(f.KeptGranted(**names(made, "standby"), gpu_bytes={GpuId("g1"): GIB}))
    made.say(observed(made, kept_life.READY, "standby", size_bytes=GIB))
    gone = {GpuId("g1"): 2 * GIB, GpuId("gone"): GIB}
    made.say(f.KeptGranted(**names(made, "standby"), gpu_bytes=gone))
    assert made.cluster.gpus[GpuId("g1")].kept == {"chat/standby": 2 * GIB}
    assert entry_in(made, "standby").state == kept_life.READY
    made.say(f.KeptEvicted(**names(made, "standby")))
    assert made.cluster.gpus[GpuId("g1")].kept == {}


@pytest.mark.parametrize(
    ("host", "device", "fits"),
    [(64 * GIB, 0, True), (64 * GIB + 1, 0, False), (0, 80 * GIB, True), (0, 80 * GIB + 1, False)],
)
def test_a_grant_fits_into_what_the_node_and_the_device_have(
    host: int, device: int, fits: bool
) -> None:
    made = history(wish())
    gpus = {gpu("g1").uuid: device} if device else {}
    grant = f.KeptGranted(**names(made), host_bytes=host, gpu_bytes=gpus)
    assert ledger.can_keep(made.cluster, grant) is fits


def serving() -> History:
    """A running replica of the model on port 20000."""
    spec = JobSpec(command=("serve",), requeue=False, serve=Serve("chat", 1))
    job_id = JobId("chat-1")
    return history(
        f.ReplicasScaled(model="chat", generation=1, add=(Replica(job_id, spec),)),
        f.JobPlaced(job_id=job_id, attempt=1, members=(member("n", "g1"),), port=20_000),
        f.JobStarted(job_id=job_id, attempt=1, node_id=NODE),
        f.ReplicaReady(job_id=job_id, attempt=1, node_id=NODE),
    )


def promoted(number: int = 1, port: int = SECOND, attempt: int = 1) -> f.StandbyPromoted:
    return f.StandbyPromoted(
        job_id=JobId("chat-1"), attempt=attempt, node_id=NODE, number=number, port=port
    )


def test_a_promotion_moves_the_route_of_the_replica_once() -> None:
    made = serving()
    assert endpoint_port(made) == 20_000
    made.say(promoted())
    assert endpoint_port(made) == SECOND
    assert not made.say(promoted(port=20_000))
    made.say(promoted(number=2, port=20_000))
    assert endpoint_port(made) == 20_000


def endpoint_port(made: History) -> int:
    (endpoint,) = ready_replicas(made.cluster, "chat")
    return endpoint.port


@pytest.mark.parametrize("fact", [promoted(attempt=2), promoted(port=0), promoted(port=20_001)])
def test_a_promotion_that_cannot_be_is_ignored(fact: f.StandbyPromoted) -> None:
    assert not serving().say(fact)


def test_a_promotion_of_a_job_that_does_not_serve_is_ignored() -> None:
    assert not history().say(promoted())


def test_a_request_for_a_model_that_no_longer_exists_is_kept_for_its_tenant() -> None:
    made = history(
        f.ModelKeepRequested(model="gone", tier="host", tenant=TenantId("physics"), user="ada")
    )
    assert made.cluster.kept["gone/host"].tenant == "physics"
