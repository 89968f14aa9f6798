"""The devices of this machine, of whichever vendors are there: what they are, and whether their memory came back after a job.

No vendor's library is loaded here. The child that calls them (`vendor_calls.py`) has a deadline for each answer, and is killed and begun
again when it passes: a wedged driver makes a device unclean, never the agent hang. Thin on purpose: no health, no resets, no holders by
process. Memory is compared with the least that was ever seen used since this agent began.
"""

import asyncio
import logging
import sys
from collections.abc import Sequence
from typing import Final

import msgspec

from libs.common.errors import Unavailable
from libs.common.model import Gpu, GpuId

# The first answer includes loading the libraries and waking the devices.
ANSWER_S: Final = 8.0
ANSWER_BYTES_MAX: Final = 1 << 20
DEATH_S: Final = 1.0
# What contexts of monitors and the driver's own caches may add.
SLACK_BYTES: Final = 256 << 20

logger = logging.getLogger(__name__)


class Device(msgspec.Struct, frozen=True):
    vendor: str
    uuid: str
    index: int
    model: str
    memory_bytes: int
    used_bytes: int


class Look(msgspec.Struct, frozen=True):
    """`missing`: why a vendor has no device here."""

    gpus: tuple[Device, ...] = ()
    missing: dict[str, str] = {}

    @property
    def nothing(self) -> str:
        return "no GPU was found on this machine (" + "; ".join(f"{vendor}: {why}" for vendor, why in self.missing.items()) + ")"


_look = msgspec.json.Decoder(Look)


class LocalDriver:
    """See `drivers.Driver`."""

    simulated = False

    def __init__(
        self, command: Sequence[str] = (sys.executable, "-P", "-m", "services.node_agent.drivers.vendor_calls"), answer_s: float = ANSWER_S
    ) -> None:
        self.command = command
        self.answer_s = answer_s
        self.child: asyncio.subprocess.Process | None = None
        self.turn = asyncio.Lock()
        self.baseline: dict[str, int] = {}

    async def inventory(self) -> Sequence[Gpu]:
        """Raises Unavailable when the drivers do not answer in time."""
        seen = await self.look()
        if not seen.gpus:
            logger.warning("%s", seen.nothing)
        return [Gpu(GpuId(gpu.uuid), gpu.index, gpu.vendor, gpu.model, gpu.memory_bytes) for gpu in seen.gpus]

    async def unclean(self, uuids: Sequence[GpuId]) -> dict[GpuId, str]:
        try:
            used = {gpu.uuid: gpu.used_bytes for gpu in (await self.look()).gpus}
        except Unavailable as error:
            return dict.fromkeys(uuids, str(error))
        held = {}
        for uuid in uuids:
            if uuid not in used:
                held[uuid] = "the driver does not know the device any more"
            elif used[uuid] > self.baseline[uuid] + SLACK_BYTES:
                held[uuid] = f"{used[uuid] >> 20} MiB of its memory are used, {self.baseline[uuid] >> 20} MiB when it was idle"
        return held

    async def look(self) -> Look:
        """One question at a time. Raises Unavailable."""
        async with self.turn:
            try:
                async with asyncio.timeout(self.answer_s):
                    seen = _look.decode(await self._ask())
            except (TimeoutError, OSError, ValueError, msgspec.DecodeError) as error:
                await self.close()
                raise Unavailable(f"the GPU drivers did not answer within {self.answer_s:.0f} s ({error or 'timeout'})") from error
            except asyncio.CancelledError:
                self._kill()
                raise
        for gpu in seen.gpus:
            self.baseline[gpu.uuid] = min(gpu.used_bytes, self.baseline.get(gpu.uuid, gpu.used_bytes))
        return seen

    async def _ask(self) -> bytes:
        if self.child is None or self.child.returncode is not None:
            pipe = asyncio.subprocess.PIPE
            self.child = await asyncio.create_subprocess_exec(*self.command, stdin=pipe, stdout=pipe, limit=ANSWER_BYTES_MAX)
        assert self.child.stdin is not None and self.child.stdout is not None
        self.child.stdin.write(b"look\n")
        return await self.child.stdout.readline()

    async def close(self) -> None:
        """Killed, and not waited for long: in a driver's call it may never die. The next question begins another."""
        child = self._kill()
        try:
            async with asyncio.timeout(DEATH_S):
                if child is not None:
                    await child.wait()
        except TimeoutError:
            logger.warning("the process %d that asked the GPU drivers does not die: the driver is wedged", child.pid if child else 0)

    def _kill(self) -> asyncio.subprocess.Process | None:
        child, self.child = self.child, None
        if child is not None and child.returncode is None:
            child.kill()
        return child
