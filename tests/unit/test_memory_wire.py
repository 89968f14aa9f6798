"""The memory broker's messages: whole maps come out, everything else closes the connection."""

import os
import socket
import struct

import pytest

from libs.job.memory import broker_wire
from libs.job.memory.broker_wire import BadMessage, Ended, Link


def linked(accepts: bool = True) -> tuple[Link, Link]:
    left, right = socket.socketpair()
    return Link(left, accepts=True), Link(right, accepts=accepts)


def test_messages_arrive_whole_and_in_order_however_they_are_cut() -> None:
    sender, receiver = linked()
    sender.send({"op": "a"})
    sender.send({"op": "b", "n": 1})
    data = receiver.stream.recv(1000)
    found = []
    for byte in data:
        sender.stream.send(bytes([byte]))
        receiver.receive()
        found += receiver.messages()
    assert found == [{"op": "a"}, {"op": "b", "n": 1}]


def test_a_descriptor_arrives_with_its_message() -> None:
    sender, receiver = linked()
    reader, writer = os.pipe()
    sender.send({"ok": True}, writer)
    os.close(writer)
    receiver.receive()
    assert receiver.messages() == [{"ok": True}]
    got = receiver.take_descriptor()
    os.write(got, b"x")
    os.close(got)
    assert os.read(reader, 2) == b"x"
    os.close(reader)


def test_descriptors_of_a_peer_that_may_send_none_are_closed() -> None:
    sender, receiver = linked(accepts=False)
    reader, writer = os.pipe()
    sender.send({"op": "hello"}, writer)
    os.close(writer)
    receiver.receive()
    assert os.read(reader, 1) == b""
    os.close(reader)
    with pytest.raises(BadMessage):
        receiver.take_descriptor()


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("<I", broker_wire.MESSAGE_BYTES_MAX + 1),
        struct.pack("<I", 1) + b"\x07",
        struct.pack("<I", 2) + b"\xc1\xc1",
        struct.pack("<I", 0),
        struct.pack("<I", 400) + b"\x91" * 400,
    ],
)
def test_message_that_is_not_a_map_is_invalid(data: bytes) -> None:
    sender, receiver = linked()
    sender.stream.send(data)
    receiver.receive()
    with pytest.raises(BadMessage):
        receiver.messages()


def test_the_end_of_a_connection_is_no_message() -> None:
    sender, receiver = linked()
    sender.close()
    with pytest.raises(Ended):
        receiver.receive()
