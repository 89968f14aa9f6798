"""A command of the operator that runs on one device, with a deadline: a burn-in or a scrub.

It runs as the agent's user, in a shell and session of its own, and sees only that device. Its last
line of output explains a failure. Whatever it started ends with it, in other sessions too: the
device may have a job next. A variable marks these processes. Raises nothing. Tests:
tests/integration/test_operator_commands.py.
"""

import asyncio
import logging
import os
import secrets
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from libs.common.devices.visibility import by_index, visibility
from libs.common.model import Gpu, GpuId
from services.node_agent.machine import environments, processes

SHELL: Final = "/bin/sh"
READ_BYTES: Final = 4_096
WORDS_MAX: Final = 200
DEATH_S: Final = 1.0
# How long a command waits while a card of the node is being divided.
RENUMBERED_S: Final = 60.0
MARK: Final = "MUSTER_COMMAND_ID"
MARK_BYTES: Final = 8
# Processes that start others while they are killed need more than one sweep.
SWEEPS: Final = 10
SWEEP_AGAIN_S: Final = 0.02

logger = logging.getLogger(__name__)


async def unchanged(vendor: str, wait_s: float) -> str:
    """Return that the GPUs are those of the inventory; see `drivers.Driver.renumbered`."""
    return ""


class OperatorCommand:
    """A command of the operator. An empty `command` does nothing and never fails."""

    def __init__(
        self,
        command: str,
        within_ms: int,
        environment: Mapping[str, str],
        gpus: Callable[[], Sequence[Gpu]],
        renumbered: Callable[[str, float], Awaitable[str]] = unchanged,
    ) -> None:
        """Create the command; `gpus` returns the inventory, `renumbered` is that of the driver."""
        self.renumbered = renumbered
        self.command, self.within_ms, self.environment, self.gpus = (
            command,
            within_ms,
            environment,
            gpus,
        )

    async def on(self, uuid: GpuId) -> str:
        """Run the command on a device; return why it failed, empty if it exited with 0 in time.

        Processes that it left are killed.
        """
        gpu = self._gpu(uuid)
        if not self.command or gpu is None:
            return ""
        if by_index([gpu], self.gpus()):
            if why := await self.renumbered(gpu.vendor, RENUMBERED_S):
                return (
                    f"its command was not run, because GPU {gpu.index} may be another one by now: "
                    f"{why}"
                )
            gpu = self._gpu(uuid)  # it may have another index now
            if gpu is None:
                return ""
        mark = secrets.token_hex(MARK_BYTES)
        env = {
            **self.environment,
            **visibility([gpu], self.gpus()),
            "MUSTER_GPUS": uuid,
            "MUSTER_GPU_PCI": gpu.pci_bus,
            MARK: mark,
        }
        try:
            child = await asyncio.create_subprocess_exec(
                *(SHELL, "-c", self.command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=env,
                cwd="/",
                start_new_session=True,
                preexec_fn=_ends_with(os.getpid()),
            )
        except OSError as error:
            return f"its command cannot be run: {error}"
        try:
            async with asyncio.timeout(self.within_ms / 1_000):
                last, code = await _last(child.stdout), await child.wait()
        except TimeoutError:
            return f"its command was not done within {self.within_ms} ms"
        finally:
            await _ended(child, mark)
        return f"its command ended with {code}{': ' + last if last else ''}" if code else ""

    def _gpu(self, uuid: GpuId) -> Gpu | None:
        return next((gpu for gpu in self.gpus() if gpu.uuid == uuid), None)


async def _ended(child: asyncio.subprocess.Process, mark: str) -> None:
    """Kill the command with all that it started. A process that hangs in a driver call may never
    end.
    """
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    left = await asyncio.to_thread(_swept, f"{MARK}={mark}".encode())
    if left:
        logger.warning("processes of a command on a device do not end after SIGKILL: %s", left)
    with suppress(TimeoutError):
        async with asyncio.timeout(DEATH_S):
            await child.wait()


def _swept(pair: bytes) -> list[int]:
    """Kill the processes with this variable; return those that are left. Blocks."""
    left: list[int] = []
    for _ in range(SWEEPS):
        left = environments.holding(pair, processes.all_pids())
        if not left:
            break
        processes.send(left, signal.SIGKILL)
        time.sleep(SWEEP_AGAIN_S)
    return left


async def _last(stream: asyncio.StreamReader | None) -> str:
    """Return the last line of the output, however long the output is."""
    assert stream is not None, "it was asked for"
    end = b""
    while part := await stream.read(READ_BYTES):
        end = (end + part)[-READ_BYTES:]
    return end.decode(errors="replace").strip().rpartition("\n")[2][-WORDS_MAX:]


def _ends_with(parent: int) -> Callable[[], None]:
    def before_exec() -> None:
        processes.prctl(processes.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return before_exec
