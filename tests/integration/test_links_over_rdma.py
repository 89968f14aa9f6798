"""Links between agents over real verbs: chosen by themselves, and TCP where there is no path.

`make rdma` runs this in its guest; elsewhere it needs an RDMA port.
"""

import os
import time
from pathlib import Path

import pytest

from libs.common.messages.copy_messages import COPIED, CopyState
from libs.common.messages.file_messages import PART_BYTES
from libs.job.transport import verbs
from libs.job.transport.errors import LinkError
from services.node_agent.fabric.choice import DIAL, RDMA, SERVE, TCP, Choices
from tests.integration.copies_world import Fetching, fetching_at

# Below the deadlines of the copy: the attempt over verbs has one of its own.
ANSWER_S = 30.0


@pytest.fixture(autouse=True)
def port() -> verbs.Port:
    try:
        return verbs.usable_port()
    except LinkError as error:
        pytest.skip(f"{error.detail}; `make rdma` runs this in a guest")


class Elsewhere(Choices):
    """A node whose port says that it has another address than it has."""

    def port(self) -> verbs.Port:
        found = super().port()
        return found._replace(gid="0000:0000:0000:0000:0000:ffff:0a4d:0063")


def copied(fetching: Fetching) -> CopyState:
    data = os.urandom(9 * PART_BYTES + 7)
    (fetching.serving.root / "model").write_bytes(data)
    done = fetching.copied("model")
    assert (done.state, done.text) == (COPIED, "")
    assert (fetching.root / "model").read_bytes() == data
    return done


def test_two_agents_with_a_port_in_one_fabric_use_rdma(tmp_path: Path, port: verbs.Port) -> None:
    dialling, listening = Choices(), Choices()
    with fetching_at(
        tmp_path, answer_s=ANSWER_S, dialling=dialling, listening=listening
    ) as fetching:
        done = copied(fetching)
        fetching.until(lambda: fetching.serving.links.sessions == 0)
    assert done.transport == RDMA and f"port {port.device}/1 is active" in done.transport_why
    assert dialling.counts()[DIAL, RDMA][0] == 1 == listening.counts()[SERVE, RDMA][0]
    assert dialling.counts()[DIAL, RDMA][1] > done.size_bytes


@pytest.mark.parametrize("side", ["dialling", "listening"])
def test_a_path_that_does_not_exist_costs_one_deadline_and_is_tcp(
    tmp_path: Path, side: str
) -> None:
    choices = {"dialling": Choices(), "listening": Choices(), side: Elsewhere()}
    with fetching_at(tmp_path, answer_s=ANSWER_S, **choices) as fetching:
        began_s = time.monotonic()
        done = copied(fetching)
        assert time.monotonic() - began_s < ANSWER_S
        assert done.transport == TCP and done.transport_why.startswith("RDMA failed: ")
        again = copied(fetching)
        assert again.transport == TCP and " s ago: " in again.transport_why


def test_a_node_that_is_set_to_tcp_uses_it(tmp_path: Path) -> None:
    with fetching_at(
        tmp_path, answer_s=ANSWER_S, dialling=Choices(), listening=Choices(TCP)
    ) as fetching:
        done = copied(fetching)
    assert done.transport == TCP
    assert done.transport_why == "the peer offers no RDMA: MUSTER_LINK_TRANSPORT=tcp"
