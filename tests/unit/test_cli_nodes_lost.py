"""`muster nodes` warns of missing isolation, once per reason, and explains one node."""

import pytest

from libs.cli.verbs import nodes
from libs.common.devices.means import lost, only_tenants


def node(name: str, **isolation: str) -> dict[str, object]:
    return {"id": name, "isolation": isolation}


def test_nodes_with_the_same_reason_share_one_warning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    nodes._warn(
        [node(f"node-{number}", users=lost("the agent is not root")) for number in range(10)]
    )
    shown = capsys.readouterr()
    assert shown.out == ""
    assert (
        shown.err.startswith(
            "\nWARNING: users are not isolated from each other on node-0, node-1, "
        )
        and shown.err.count("WARNING") == 1
    )
    assert shown.err.endswith("node-7 and 2 more: the agent is not root\n")


def test_isolated_nodes_and_old_gateways_cause_no_warning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    nodes._warn([node("a", users="enforced", cpu=lost("no controller")), {"id": "b"}])
    assert capsys.readouterr() == ("", "")


def test_a_gpu_that_two_nodes_register_is_explained_on_both(
    capsys: pytest.CaptureFixture[str],
) -> None:
    contest = {"node_id": "a", "others": ["b"], "shown": True}
    nodes._print_contested({"id": "a", "contested": {"GPU-1": contest}})
    owners = capsys.readouterr().out
    assert "b registers GPU-1 too." in owners and "remove the other node" in owners
    nodes._print_contested(
        {"id": "b", "contested": {"GPU-1": contest, "GPU-2": {**contest, "shown": False}}}
    )
    others = capsys.readouterr().out
    assert (
        "GPU-1 belongs to a: that node registered it first." in others
        and "muster node remove a" in others
    )
    assert (
        "GPU-2 belongs to a: no driver of this node shows it." in others
        and "MUSTER_GPUS_REMOVED" in others
    )


def test_ignored_parts_of_a_registration_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    nodes._print_left_out(
        {"gpus_ignored": 3, "left_out": ["1 of 257 labels: at most 256 are taken"]}
    )
    out = capsys.readouterr().out
    assert "3 GPUs of this node are ignored" in out and "under another name" in out
    assert "The agent left out 1 of 257 labels" in out
    nodes._print_left_out({"gpus_ignored": 0, "left_out": []})
    nodes._print_contested({"id": "a", "contested": {}})
    assert capsys.readouterr().out == ""


def test_one_node_shows_what_it_cannot_enforce_and_its_tenants(
    capsys: pytest.CaptureFixture[str],
) -> None:
    nodes._print_lost({"users": lost("the agent is not root"), **only_tenants(["default", "lab"])})
    assert capsys.readouterr().out.splitlines()[1:] == [
        "This node cannot enforce or provide:",
        "  users: the agent is not root",
        "",
        "This node runs only jobs of these tenants: default, lab",
    ]
