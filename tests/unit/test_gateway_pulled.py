"""The gateway's list of pulled models, when a node answers with impossible numbers."""

import msgspec
import pytest

from libs.common.messages.pulled_messages import PulledCopy, PulledReport
from libs.common.model import NodeId
from services.api_gateway.http.pulled import _shown


@pytest.mark.parametrize("number", [-1, -(1 << 63), (1 << 63) - 1, (1 << 64) - 1])
def test_numbers_of_a_hostile_node_do_not_break_the_answer(number: int) -> None:
    copy = PulledCopy(
        repository="x/y",
        commit="a" * 40,
        revisions=("main",),
        size_bytes=number,
        files=number,
        complete=True,
        in_use=False,
        used_ns=number,
        path="/x",
    )
    report = PulledReport(copies=(copy, copy), bound_bytes=number, left_out=number)
    shown = _shown(NodeId("n1"), report)
    assert shown.size_bytes >= 0 and msgspec.json.encode(shown)
