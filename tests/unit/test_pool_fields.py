"""Pools in requests: sizes as users write them, and refusals with the figures."""

from typing import Any

import pytest

from libs.common.errors import Refused
from libs.common.model import JobId, JobSpec
from libs.common.state.cluster import Cluster
from services.api_gateway.intents import identity_intents, model_intents, pool_fields
from services.api_gateway.intents.job_intents import submission
from tests.given import given, registered, spec

MIB, GIB = 1 << 20, 1 << 30


def submitted(**fields: Any) -> JobSpec:
    return submission({"command": ["true"], **fields}, JobId("j")).spec


def refused(**fields: Any) -> str:
    with pytest.raises(Refused) as found:
        submitted(**fields)
    return str(found.value)


def test_pools_are_sizes() -> None:
    found = submitted(pool="40GiB", host_pool="64MiB")
    assert (found.pool_bytes, found.host_pool_bytes) == (40 * GIB, 64 * MIB)
    assert found.pools_on_node_bytes == 40 * GIB + 64 * MIB
    assert submitted(pool_bytes=4 * MIB, gpus=2).pools_on_node_bytes == 8 * MIB
    assert submitted(host_pool="1GiB", memory="1GiB").host_bytes == 2 * GIB


@pytest.mark.parametrize("name", ["pool", "host_pool"])
@pytest.mark.parametrize(
    ("size", "words"),
    [
        (0, "0 is no pool"),
        (-1, "-1 is out of bounds: give 0 to 1125899906842624"),
        (4096, "4096 bytes are too few: give at least 2097152 (2MiB)"),
        (1 << 62, f"{1 << 62} is out of bounds"),
        ("lots", "not a size"),
    ],
)
def test_a_size_that_no_pool_can_have_is_refused(name: str, size: object, words: str) -> None:
    assert words in refused(**{name: size})
    assert name in refused(**{name: size})


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"gpus": 0, "cpus": 1, "pool": "1GiB"}, "asks for no GPU"),
        ({"mig_profile": "1g.10gb", "pool": "1GiB"}, "MIG instances"),
        ({"gpu_memory": "1GiB", "pool": "2GiB"}, f"more than gpu_memory, which is {GIB} bytes"),
        ({"pool": "1GiB", "pool_bytes": GIB}, "both mean the same"),
    ],
)
def test_a_pool_lies_inside_the_job_s_part_of_its_gpus(fields: dict[str, Any], words: str) -> None:
    assert words in refused(**fields)


def test_a_host_pool_needs_no_gpu() -> None:
    assert submitted(gpus=0, cpus=1, host_pool="2MiB").host_pool_bytes == 2 * MIB


def cluster() -> Cluster:
    return given(registered("n", 1, memory_bytes=100 * GIB)).cluster


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"pool_bytes": 81 * GIB}, f"the largest has {80 * GIB} bytes:"),
        ({"pool_bytes": 41 * GIB, "gpu_share": 50}, f"and 50 % of it are {40 * GIB}"),
        ({"host_pool_bytes": 101 * GIB}, f"the largest has {100 * GIB} bytes"),
        ({"host_pool_bytes": 60 * GIB, "memory_bytes": 60 * GIB}, "fit on no node"),
    ],
)
def test_a_pool_that_no_device_or_node_could_contain_is_refused(
    fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(Refused) as found:
        pool_fields.check_cluster(cluster(), spec(**fields))
    assert words in str(found.value)


def test_a_pool_that_fits_or_may_fit_on_nodes_to_come_is_accepted() -> None:
    pool_fields.check_cluster(cluster(), spec(pool_bytes=80 * GIB, host_pool_bytes=100 * GIB))
    pool_fields.check_cluster(cluster(), spec(pool_bytes=40 * GIB, gpu_share=50))
    pool_fields.check_cluster(Cluster(), spec(pool_bytes=999 * GIB, host_pool_bytes=999 * GIB))


def test_replicas_of_a_model_have_pools() -> None:
    body = {"name": "m", "command": ["serve"], "pool": "1GiB"}
    fact = model_intents.deployment(body, None, "default")  # type: ignore[arg-type]
    assert fact.spec.pool_bytes == GIB
    with pytest.raises(Refused, match="0 is no pool"):
        model_intents.deployment({**body, "pool": 0}, None, "default")  # type: ignore[arg-type]


def test_a_tenant_s_limit_is_a_size() -> None:
    fact = identity_intents.tenant_setting({"max_pool_bytes": "2GiB"}, "physics", "root")
    assert fact.max_pool_bytes == 2 * GIB
    with pytest.raises(Refused, match="max_pool_bytes"):
        identity_intents.tenant_setting({"max_pool_bytes": -1}, "physics", "root")
