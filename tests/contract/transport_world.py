"""Pairs of linked sides for the transport's contract: TCP, TCP over a bad network, RDMA.

It imports only pytest and the standard library: the guest of `make rdma` runs it too.
"""

import ctypes
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from libs.job.transport.access import SharedKey
from libs.job.transport.errors import LinkError
from libs.job.transport.link import Link
from libs.job.transport.listening import Listener
from libs.job.transport.traffic import Options
from libs.job.transport.transports import (
    EitherTransport,
    RdmaTransport,
    TcpTransport,
    Transport,
)

KEY = secrets.token_bytes(32)
CLONE_NEWNET = 0x40000000
# So that tests of many messages do not need gigabytes.
SMALL = Options(buffers=8, buffer_bytes=64 << 10, give_up_s=20)
Make = Callable[[str, Options], Transport]


def tcp(name: str, options: Options) -> Transport:
    return TcpTransport(SharedKey(KEY, name), options)


def rdma(name: str, options: Options) -> Transport:
    return RdmaTransport(SharedKey(KEY, name), options)


def either(name: str, options: Options) -> Transport:
    return EitherTransport(SharedKey(KEY, name), options)


class Pair:
    """Two sides, `left` dialled by `dialer` and `right` accepted by `listener`."""

    def __init__(self, make: Make, listen: Callable[[], Listener], options: Options) -> None:
        self.listener = listen()
        self.dialer = make("dialer", options)
        self.left: Link = self.dialer.connect(self.listener.address, within_s=20)
        self.right: Link = self.listener.accept(within_s=20)

    def close(self) -> None:
        for link in (self.left, self.right):
            link.close()
        self.listener.close()


class World:
    """A kind of pair, and the network between its sides."""

    def __init__(self, name: str, make: Make, host: str, namespace: str = "") -> None:
        self.name, self.make, self.host, self.namespace = name, make, host, namespace

    @contextmanager
    def pair(self, options: Options = SMALL) -> Iterator[Pair]:
        pair = Pair(self.make, lambda: self.listener(options), options)
        try:
            yield pair
        finally:
            pair.close()

    def listener(self, options: Options = SMALL, name: str = "listener") -> Listener:
        made: list[Listener] = []
        work = threading.Thread(target=lambda: made.append(self._listen(options, name)))
        work.start()
        work.join()
        return made[0]

    def _listen(self, options: Options, name: str) -> Listener:
        """In a thread of its own, which may enter a network namespace."""
        if self.namespace:
            with open(f"/run/netns/{self.namespace}") as space:
                found = ctypes.CDLL(None, use_errno=True).setns(space.fileno(), CLONE_NEWNET)
                assert found == 0, os.strerror(ctypes.get_errno())
        return self.make(name, options).listen(self.host)


def cut(link: Link) -> None:
    """Break a link's connection as a failing network does."""
    with link.progress.lock:
        wire = link.progress.wire
        if wire is None:
            return
        if hasattr(wire, "fail"):
            wire.fail()
            return
        with suppress(OSError):
            wire._stream.shutdown(socket.SHUT_RDWR)  # type: ignore[attr-defined]


def until(true: Callable[[], object], within_s: float = 20.0) -> None:
    by_s = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < by_s, "not true in time"
        time.sleep(0.005)


class Other:
    """A function in a thread; `join` raises what it raised."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._run, args=(work,))
        self.thread.start()

    def _run(self, work: Callable[[], object]) -> None:
        try:
            work()
        except (LinkError, AssertionError, OSError, ValueError) as error:
            self.error = error

    def join(self, within_s: float = 60.0) -> None:
        self.thread.join(within_s)
        assert not self.thread.is_alive(), "the thread does not end"
        if self.error is not None:
            raise self.error


def text(link: Link, within_s: float = 20.0) -> bytes:
    """Receive one message and return a copy of it."""
    with link.recv(within_s=within_s) as message:
        return bytes(message.view)


def cause_of(call: Callable[[], object]) -> LinkError:
    try:
        call()
    except LinkError as error:
        return error
    raise AssertionError("the call did not fail")
