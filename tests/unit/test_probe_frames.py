"""The pure parts of a probe: proofs, frames, the rate of a stream, and the allowance of time."""

import pytest

from services.node_agent.fabric.probes.allowance import SAVED_NS, SHARE_PARTS, Allowance
from services.node_agent.fabric.probes.frames import (
    DATA,
    DIAL,
    END,
    FRAME_BYTES_MAX,
    PING,
    SERVE,
    BrokenProtocol,
    header,
    is_proof,
    parsed,
    proof,
    rate,
)

TOKEN, SERVER, CLIENT = b"t" * 32, b"s" * 16, b"c" * 16


def test_only_the_token_proves_an_order() -> None:
    mac = proof(TOKEN, DIAL, SERVER, CLIENT)
    assert is_proof(mac, TOKEN, DIAL, SERVER, CLIENT)
    assert not is_proof(mac, b"u" * 32, DIAL, SERVER, CLIENT)


def test_a_proof_cannot_be_replayed_or_sent_back() -> None:
    mac = proof(TOKEN, DIAL, SERVER, CLIENT)
    assert not is_proof(mac, TOKEN, SERVE, SERVER, CLIENT)
    assert not is_proof(mac, TOKEN, DIAL, b"x" * 16, CLIENT)


def test_a_frame_has_a_kind_and_a_length() -> None:
    assert parsed(header(DATA, 7), (DATA, END)) == (DATA, 7)


@pytest.mark.parametrize(
    "data", [header(b"X", 1), header(PING, 1), header(DATA, FRAME_BYTES_MAX + 1)]
)
def test_another_frame_breaks_the_protocol(data: bytes) -> None:
    with pytest.raises(BrokenProtocol, match="it sent a frame"):
        parsed(data, (DATA, END))


def test_a_rate_leaves_out_the_first_quarter() -> None:
    assert rate([(0.0, 100), (1.0, 200), (2.0, 300), (3.0, 400)]) == 100
    assert rate([(0.0, 1_000), (0.1, 1_100), (10.0, 4_000)]) == 300


def test_a_stream_of_one_arrival_has_no_rate() -> None:
    assert rate([]) == rate([(1.0, 5)]) == 0
    assert rate([(1.0, 5), (1.0, 9)]) == 0


def test_a_stream_that_arrives_at_its_end_is_measured_from_its_beginning() -> None:
    assert rate([(0.0, 1), (2.0, 101)]) == 50


def test_a_pause_of_one_process_does_not_slow_down_the_link() -> None:
    """Ten bytes arrive each second; once for 30 s none are read, then all at once."""
    steady = [(float(second), 10 * second) for second in range(1, 101)]
    paused = [(max(at_s, 70.0) if 40 < at_s < 70 else at_s, count) for at_s, count in steady]
    assert rate(steady) == 10
    assert rate(paused) == 10


def test_probes_take_at_most_a_quarter_of_the_time() -> None:
    allowance = Allowance(0)
    assert allowance.may_begin(0)
    allowance.spend(SAVED_NS)
    assert not allowance.may_begin(0)
    assert not allowance.may_begin(SHARE_PARTS - 1)
    assert allowance.may_begin(2 * SHARE_PARTS)
    allowance.spend(1)
    assert not allowance.may_begin(2 * SHARE_PARTS)


def test_time_is_saved_up_to_a_bound() -> None:
    allowance = Allowance(0)
    assert allowance.may_begin(1_000 * SAVED_NS)
    allowance.spend(SAVED_NS)
    assert not allowance.may_begin(1_000 * SAVED_NS)
