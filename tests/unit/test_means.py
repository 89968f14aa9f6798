"""Means that a job needs of its node, and means that a node has lost."""

from libs.common.container_spec import ContainerSpec
from libs.common.devices import means
from libs.common.devices.means import CONTAINERS
from libs.common.model import IMAGES, MIG, MPS, JobSpec
from services.node_agent.sharing import ways


def spec(**fields: object) -> JobSpec:
    return JobSpec(command=("true",), **fields)  # type: ignore[arg-type]


def test_a_job_needs_the_means_that_it_asks_for() -> None:
    assert means.needed(spec()) == ()
    assert means.needed(spec(image="a", isolation=MPS)) == (IMAGES, MPS)
    assert means.needed(spec(image="a", container=ContainerSpec())) == (IMAGES, CONTAINERS)
    assert means.needed(spec(mig_profile="1g.10gb")) == (MIG,)
    assert means.needed(spec(isolation="time_slice")) == ()


def test_a_node_lacks_what_it_says_that_it_lost() -> None:
    said = {
        "cpu": means.lost("read-only"),
        MPS: means.lost("no control program"),
        MIG: means.lost(""),
    }
    assert means.lacking(said, (MIG, MPS)) == MPS
    assert means.why_lacking(said, MPS) == "no control program"
    assert means.lacking(said, (MIG,)) == ""


def test_a_node_that_does_not_name_a_means_has_it_but_for_images() -> None:
    assert means.lacking({}, (MPS, MIG)) == ""
    assert means.lacking({}, (IMAGES,)) == IMAGES
    assert "older" in means.why_lacking({}, IMAGES)
    assert means.lacking({IMAGES: means.ENFORCED}, (IMAGES,)) == ""


def test_the_vendors_whose_devices_can_be_shared_are_those_that_the_agent_knows() -> None:
    assert set(means.MPS_VENDORS) == set(ways.WAYS)
