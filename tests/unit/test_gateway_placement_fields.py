"""What a request may say of where its job runs: the ways to write it, and what is refused."""

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
def test_the_ways_to_write_where_a_job_runs(given: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert spec_of(**given) == JobSpec(command=("true",), **wanted)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"gpu_memory": "much"}, "gpu_memory: 'much' is no size"),
        ({"gpu_memory": "1GiB", "fraction": 0.5}, "fraction, gpu_memory and mig_profile"),
        ({"mig_profile": "1g.10gb", "gpu_memory": "1GiB"}, "fraction, gpu_memory and mig_profile"),
        ({"mig_profile": "9g.1gb"}, "mig_profile: '9g.1gb' is on no card"),
        ({"isolation": "mig"}, "isolation: mig needs a mig_profile"),
        (
            {"isolation": "mps", "mig_profile": "1g.10gb"},
            "isolation: a MIG instance is never shared under mps",
        ),
        ({"isolation": "walls"}, "isolation: 'walls' is not known"),
        ({"gpus": 0}, "gpus: a job without GPUs says how many CPUs"),
        ({"gpus": 0, "cpus": 1, "gpu_uuids": ["x"]}, "gpus: 0 GPUs have no memory"),
        ({"cpus": "many"}, "cpus: 'many' is no number"),
        ({"cpus": -1}, "cpus: -1 is no number"),
        ({"memory": "1GiB", "memory_bytes": 1}, "memory: memory_bytes is given too"),
        ({"compute_capability": "eight"}, "compute_capability: 'eight'"),
        ({"numa": "maybe"}, "numa: 'maybe' is not known: give required, preferred, none"),
        ({"node_list": ["N 1"]}, "node_list: 'N 1' is no node's name"),
        ({"model": ["\n"]}, "model: "),
        ({"node_labels": {"a": "\0"}}, "node_labels: "),
        ({"placement": "Best Fit"}, "placement: 'Best Fit' is no strategy's name"),
    ],
)
def test_what_no_cluster_could_mean_is_refused(given: dict[str, Any], named: str) -> None:
    with pytest.raises(Refused, match="^" + named.replace("(", "[(]").replace("|", "[|]")):
        spec_of(**given)


def test_who_says_nothing_of_it_asks_for_what_jobs_always_asked_for() -> None:
    assert spec_of(gpus=2) == JobSpec(command=("true",), gpus=2)
