"""`muster nodes` warns of nodes on which users do not keep jobs apart: once for each reason, beside the table."""

import pytest

from libs.cli.verbs import nodes
from libs.common.means import lost, only_tenants


def node(name: str, **isolation: str) -> dict[str, object]:
    return {"id": name, "isolation": isolation}


def test_nodes_that_share_a_reason_are_named_in_one_warning(capsys: pytest.CaptureFixture[str]) -> None:
    nodes._warn([node(f"node-{number}", users=lost("the agent is not root")) for number in range(10)])
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("\nWARNING: users do not keep jobs apart on node-0, node-1, ") and shown.err.count("WARNING") == 1
    assert shown.err.endswith("node-7 and 2 more: the agent is not root\n")


def test_nodes_that_keep_users_apart_and_old_gateways_cause_no_warning(capsys: pytest.CaptureFixture[str]) -> None:
    nodes._warn([node("a", users="enforced", cpu=lost("no controller")), {"id": "b"}])
    assert capsys.readouterr() == ("", "")


def test_one_node_says_what_it_lost_and_whose_jobs_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    nodes._print_lost({"users": lost("the agent is not root"), **only_tenants(["default", "lab"])})
    assert capsys.readouterr().out.splitlines()[1:] == [
        "This node has lost:",
        "  users: the agent is not root",
        "",
        "This node takes jobs of these tenants only: default, lab",
    ]
