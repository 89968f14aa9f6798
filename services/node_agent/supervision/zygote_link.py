"""The agent's end of the zygote: start it, ask it, and start the next one when it dies.

Replies come in the order of the requests. A zygote that died may or may not have forked a
supervisor for its last request. Asking again is safe, because only one supervisor can claim an
attempt (`records.claim`).
"""

import asyncio
import collections
import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
from typing import Any

import msgspec

from libs.common.process.open_files import first_limit
from services.node_agent.supervisor import order, zygote

TRIES = 5
RESPAWN_FIRST_S = 0.02
RESPAWN_MAX_S = 2.0
SEND_BUFFER_BYTES = 4 * 1024 * 1024
EXIT_WAIT_S = 5.0
# Without site: it starts in half the time, and what it forks shares fewer pages with it.
INTERPRETER_FLAGS = ["-I", "-S", "-X", "utf8"]
# Symbols are resolved once, in the zygote, and not again in every process that it forks. Jobs bring
# their own environment.
ZYGOTE_ENVIRONMENT = {"LD_BIND_NOW": "1", "MALLOC_ARENA_MAX": "1"}
# Errors of a machine without free descriptors, memory, processes or threads.
NO_ROOM = (OSError, RuntimeError)

logger = logging.getLogger(__name__)


class ZygoteLost(Exception):
    """The zygote died before it answered; it may have done what was asked."""


class ZygoteLink:
    """The zygote of one agent.

    `log_path` takes what the zygote and crashing supervisors print. `home`: see
    `cgroups.Home.dirs`.
    """

    def __init__(self, log_path: str, home: dict[str, str]) -> None:
        self._log_path = log_path
        self._home = home
        self._replies: collections.deque[asyncio.Future[dict[str, Any]]] = collections.deque()
        self._writer: asyncio.StreamWriter | None = None
        self._ready = asyncio.Event()
        self._closing = False
        self.pid = 0

    async def start(self) -> None:
        await self._spawn()
        self._running = asyncio.create_task(self._run())
        self._running.add_done_callback(self._run_ended)

    async def close(self) -> None:
        """Let the zygote go; supervisors live on."""
        self._closing = True
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        await self._let_go()
        self._ready.set()

    async def ask(self, frame: bytes) -> dict[str, Any]:
        """Return the reply; wait while no zygote can be started.

        Raises ZygoteLost if TRIES zygotes died over it, or the link is closed, and any error that
        ended the task which starts zygotes.
        """
        for _ in range(TRIES):
            await self._ready.wait()
            if self._closing:
                break
            if self._running.done():
                self._running.result()
            with contextlib.suppress(ZygoteLost):
                return await self._ask_once(frame)
        raise ZygoteLost(f"{TRIES} zygotes died before they answered; see {self._log_path}")

    async def _ask_once(self, frame: bytes) -> dict[str, Any]:
        assert self._writer is not None
        reply: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._replies.append(reply)
        self._writer.write(frame)
        return await reply

    async def _run(self) -> None:
        """Read replies until the zygote dies, then start the next one, with growing pauses."""
        delay_s = RESPAWN_FIRST_S
        while True:
            answered = await self._read_replies()
            delay_s = RESPAWN_FIRST_S if answered else min(delay_s * 2, RESPAWN_MAX_S)
            while not await self._respawned(delay_s):
                delay_s = min(delay_s * 2, RESPAWN_MAX_S)

    async def _respawned(self, delay_s: float) -> bool:
        """Start the next zygote after a pause; return whether there was room for it."""
        try:
            await self._let_go()
            await asyncio.sleep(delay_s)
            await self._spawn()
        except NO_ROOM as error:
            logger.error(
                "cannot start the zygote (%s): no job starts on this node until it can; raise the "
                "agent's limit of open files, or free memory or processes",
                error,
            )
            await asyncio.sleep(delay_s)
            return False
        return True

    def _run_ended(self, task: asyncio.Task[None]) -> None:
        """Let those that wait for a reply see that none will come."""
        if not task.cancelled():
            logger.error(
                "no zygote is started any more: restart the agent", exc_info=task.exception()
            )
        self._drop_replies()
        self._ready.set()

    async def _read_replies(self) -> int:
        answered = 0
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                size = int.from_bytes(
                    await self._reader.readexactly(order.FRAME_PREFIX_BYTES), "big"
                )
                message = msgspec.json.decode(await self._reader.readexactly(size))
                answered += 1
                waiting = self._replies.popleft()
                if not waiting.done():
                    waiting.set_result(message)
        return answered

    async def _spawn(self) -> None:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
                self._process = _run_zygote(theirs.fileno(), self._log_path, self._home)
            self.pid = self._process.pid
            self._reader, self._writer = await asyncio.open_connection(sock=ours)
        except NO_ROOM:
            ours.close()
            raise
        self._ready.set()

    async def _let_go(self) -> None:
        self._ready.clear()
        if self._writer is not None:
            self._writer.close()
        self._drop_replies()
        await asyncio.to_thread(self._await_exit)

    def _drop_replies(self) -> None:
        while self._replies:
            waiting = self._replies.popleft()
            if not waiting.done():
                waiting.set_exception(ZygoteLost())

    def _await_exit(self) -> None:
        """Wait until the zygote exits; its socket is closed. One that hangs is killed."""
        try:
            self._process.wait(EXIT_WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _run_zygote(descriptor: int, log_path: str, home: dict[str, str]) -> "subprocess.Popen[bytes]":
    """Start the zygote without waiting for it; vfork(2) costs the event loop a millisecond."""
    line = [sys.executable, *INTERPRETER_FLAGS, os.path.abspath(zygote.__file__), json.dumps(home)]
    with os.fdopen(
        os.open(log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600), "ab"
    ) as log:
        os.fchmod(log.fileno(), 0o600)
        return subprocess.Popen(
            line,
            stdin=descriptor,
            stdout=log,
            stderr=log,
            env={**ZYGOTE_ENVIRONMENT, zygote.OPEN_FILES: str(first_limit())},
            start_new_session=True,
        )
