"""Placement fields of a request: the forms that users may write, and what is refused."""

from typing import Any

import pytest

from libs.common.errors import Refused
from libs.common.model import JobId, JobSpec
from services.api_gateway.intents.job_intents import submission

J = JobId("j1")
GIB = 1 << 30


def spec_of(**given: Any) -> JobSpec:
    return submission({"command": ["true"], **given}, J).spec


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"gpu_memory": "40GiB"}, {"gpu_memory_bytes": 40 * GIB}),
        ({"gpu_memory": "40g"}, {"gpu_memory_bytes": 40 * GIB}),
        ({"gpu_memory": "40GB"}, {"gpu_memory_bytes": 40 * 10**9}),
        ({"gpu_memory": 4096}, {"gpu_memory_bytes": 4096}),
        ({"memory": "1.5 GiB"}, {"memory_bytes": 3 * GIB // 2}),
        ({"cpus": 1.5}, {"cpus_milli": 1_500}),
        ({"cpus": "4", "gpus": 0}, {"cpus_milli": 4_000, "gpus": 0}),
        ({"compute_capability": "8.6"}, {"compute_capability_min": (8, 6)}),
        ({"model": "H100|A100"}, {"model": ("H100", "A100")}),
        ({"model": ["H100"]}, {"model": ("H100",)}),
        ({"node_list": "n1,n2"}, {"node_list": ("n1", "n2")}),
        ({"mig_profile": "1g.10gb"}, {"mig_profile": "1g.10gb"}),
        (
            {"rack": "required", "allow_cross_numa": False},
            {"rack": "required", "allow_cross_numa": False},
        ),
    ],
)
def test_placement_fields_accept_several_forms(
    given: dict[str, Any], wanted: dict[str, Any]
) -> None:
    assert spec_of(**given) == JobSpec(command=("true",), **wanted)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"gpu_memory": "much"}, "gpu_memory: 'much' is not a size"),
        ({"gpu_memory": "1GiB", "fraction": 0.5}, "fraction, gpu_memory and mig_profile"),
        ({"mig_profile": "1g.10gb", "gpu_memory": "1GiB"}, "fraction, gpu_memory and mig_profile"),
        ({"mig_profile": "9g.1gb"}, "mig_profile: '9g.1gb' is not known"),
        ({"isolation": "mig"}, "mig_profile: missing: isolation mig needs"),
        (
            {"isolation": "mps", "mig_profile": "1g.10gb"},
            "isolation: mps does not apply to a MIG instance",
        ),
        ({"isolation": "walls"}, "isolation: 'walls' is not known"),
        ({"gpus": 0}, "cpus: missing: a job without GPUs must say how many CPUs"),
        ({"gpus": 0, "cpus": 1, "gpu_uuids": ["x"]}, "gpus: the job asks for no GPU"),
        ({"cpus": "many"}, "cpus: 'many' is not a number"),
        ({"cpus": -1}, "cpus: -1 is not a number"),
        ({"memory": "1GiB", "memory_bytes": 1}, "memory: memory_bytes is given too"),
        ({"compute_capability": "eight"}, "compute_capability: 'eight'"),
        ({"numa": "maybe"}, "numa: 'maybe' is not known: give one of required, preferred, none"),
        ({"node_list": ["N 1"]}, "node_list: 'N 1' is not a node name"),
        ({"model": ["\n"]}, "model: "),
        ({"node_labels": {"a": "\0"}}, "node_labels: "),
        ({"placement": "Best Fit"}, "placement: 'Best Fit' is not the name of a strategy"),
    ],
)
def test_placement_fields_that_no_cluster_can_satisfy_are_refused(
    given: dict[str, Any], named: str
) -> None:
    with pytest.raises(Refused, match="^" + named.replace("(", "[(]").replace("|", "[|]")):
        spec_of(**given)


def test_request_without_placement_fields_gets_the_defaults() -> None:
    assert spec_of(gpus=2) == JobSpec(command=("true",), gpus=2)
