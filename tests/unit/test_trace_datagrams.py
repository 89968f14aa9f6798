"""The datagrams of libkineto's daemon: what is read, what is answered, what is refused."""

import pytest

from services.node_agent.tracing import datagrams as d


def test_a_question_names_the_process_and_its_ancestors() -> None:
    assert d.decoded(d.request((7, 1))) == d.Asked(d.ACTIVITIES, 0, (7, 1))
    assert d.decoded(d.request((7,), d.CUPTI)) == d.Asked(d.ACTIVITIES, 0, (7,), d.CUPTI)


def test_a_registration_names_the_gpu() -> None:
    datagram = d.HEADER.pack(16, b"ctxt") + d.CONTEXT.pack(2, 7, 9)
    assert d.decoded(datagram) == d.Registered(2, 7, 9)
    assert d.registration(1) == d.HEADER.pack(4, b"ctxt") + b"\1\0\0\0"


def test_the_layout_is_that_of_dynolog() -> None:
    datagram = d.request((258,))
    assert datagram[:8] == (20).to_bytes(8, "little")
    assert datagram[8:40] == b"req".ljust(32, b"\0")
    assert datagram[40:] == b"\2\0\0\0" + b"\1\0\0\0" + bytes(8) + b"\2\1\0\0"


def test_an_answer_carries_the_instruction() -> None:
    text = d.written({"A": 1, "B": "x"})
    assert text == "A=1\nB=x\n"
    assert d.text_of(d.configuration(text)) == text
    assert d.text_of(d.configuration("")) == ""


@pytest.mark.parametrize(
    "datagram",
    [
        b"",
        b"x" * 39,
        d.HEADER.pack(5, b"req"),
        d.HEADER.pack(0, b"other"),
        d.HEADER.pack(3, b"ctxt") + b"abc",
        d.HEADER.pack(16, b"req") + d.REQUEST.pack(2, 0, 0),
        d.HEADER.pack(16, b"req") + d.REQUEST.pack(2, -1, 0),
        d.HEADER.pack(16, b"req") + d.REQUEST.pack(2, 1, 0),
        d.HEADER.pack(16, b"req") + d.REQUEST.pack(2, 1 << 30, 0),
    ],
)
def test_anything_else_is_refused(datagram: bytes) -> None:
    with pytest.raises(ValueError, match=r"datagram|request"):
        d.decoded(datagram)
