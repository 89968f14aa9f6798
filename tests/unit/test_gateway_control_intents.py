"""Requests about device controls.

The gateway records them, refuses impossible ones, and waits only where no new request may come.
"""

from typing import Any

import pytest

from libs.common.errors import Refused
from libs.common.facts import GpuControlRequested
from libs.common.model import Gpu, GpuId, NodeId
from libs.common.state.cluster import Cluster, GpuView, Node
from services.api_gateway.intents.control_intents import control
from services.api_gateway.problems import Problem

NODE = NodeId("n")


def device(
    held_by: str = "", service: str = "online", present: bool = True, uuid: str = "g"
) -> GpuView:
    gpu = Gpu(
        uuid=GpuId(uuid),
        index=0,
        vendor="nvidia",
        model="H100",
        memory_bytes=1,
        power_mw=(200_000, 700_000),
    )
    return GpuView(NODE, gpu, present, service=service, holds={held_by: 100} if held_by else {})


def said(name: str, *views: GpuView, hears: bool = True, **body: Any) -> list[GpuControlRequested]:
    return control(
        {**body, "user": "ada"},
        name,
        views,
        Cluster(nodes={NODE: Node(NODE, "healthy", takes_controls=hears)}),
    )


def fact(name: str, value: str = "", uuid: str = "g") -> GpuControlRequested:
    return GpuControlRequested(uuid=GpuId(uuid), control=name, value=value, user="ada")


def test_each_device_gets_its_own_fact_whichever_job_has_it() -> None:
    two = (device("j.1"), device(uuid="h"))
    assert said("power", *two, value="300") == [fact("power", "300"), fact("power", "300", "h")]
    assert said("clocks", device(), value="default") == [fact("clocks")]


@pytest.mark.parametrize(
    ("name", "body", "why"),
    [
        ("power", {"value": "900"}, "accepts 200 to 700 W"),
        ("power", {}, "give watts"),
        ("power", {"value": 300}, "as text"),
        ("clocks", {"value": ""}, "give MHz"),
        ("power", {"watts": "300"}, "'watts' is not known"),
    ],
)
def test_unsupported_control_of_a_device_is_refused(
    name: str, body: dict[str, Any], why: str
) -> None:
    with pytest.raises(Refused, match=why):
        said(name, device(), **body)


def test_a_card_that_is_divided_is_free_when_all_its_parts_are() -> None:
    parts = [device(uuid="g"), device("j.1", uuid="g.1"), device(uuid="h")]
    cluster = Cluster(
        nodes={
            NODE: Node(NODE, "healthy", takes_controls=True, gpus=[part.gpu.uuid for part in parts])
        }
    )
    cluster.gpus = {part.gpu.uuid: part for part in parts}
    with pytest.raises(
        Problem, match="compute-partition needs a free device, and j still holds a part of it"
    ):
        control({"value": "SPX"}, "compute-partition", parts[:1], cluster)
    assert control({"value": "off"}, "mig", parts[2:], cluster) == [
        GpuControlRequested(uuid=GpuId("h"), control="mig", value="off")
    ]
    with pytest.raises(Refused, match="give one of SPX, DPX, TPX, QPX, CPX, default"):
        control({"value": "cpx"}, "compute-partition", parts[2:], cluster)


def test_a_reset_needs_a_device_that_nobody_has_or_that_drains() -> None:
    assert said("reset", device()) == [fact("reset")]
    assert said("reset", device("j.1", "draining")) == [fact("reset")]
    with pytest.raises(
        Problem,
        match="reset needs a free device, and j still holds a part of it: drain it with",
    ) as found:
        said("reset", device("j.1"), device(uuid="h"))
    assert (found.value.status, found.value.more) == (409, {"jobs": ["j"]})
    with pytest.raises(Problem, match=r"j7 \.\.\."):
        said("reset", *(device(f"j{number}.1", uuid=f"g{number}") for number in range(9)))


def test_unreachable_nodes_are_reported() -> None:
    with pytest.raises(Problem, match="use one of power, clocks") as found:
        said("colour", device())
    assert found.value.status == 404
    with pytest.raises(Problem, match="is lost"):
        said("reset", device(present=False))
    with pytest.raises(Problem, match="too old"):
        said("reset", device(), hears=False)
