"""The agent's side of the memory broker: starts it, restarts it, keeps a copy of each descriptor.

Broker or agent may be killed at any moment: what one loses the other has. If both end together,
only `attempts.json` is left: the attempts in it that still run are admitted as lost (`grants.py`).
A broker that does not answer is killed and replaced; one whose driver hung is replaced by one that
does not call this driver. Wedged processes are let go of: the next broker has its own sockets. No
exchange with a broker waits in the event loop (`control_link.py`).
docs/decisions/0037 compares this with other ways. Tests: tests/integration/test_memory_broker.py.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from libs.common.errors import Refused
from libs.job.device.driver_library import CALL_VARIABLE
from libs.job.memory.broker_wire import BadMessage, Ended, Link
from services.node_agent.memory import control_link
from services.node_agent.memory.broker import BROKER_SOCKET, CONTROL_SOCKET
from services.node_agent.memory.control_link import ControlLink
from services.node_agent.memory.device_memory import Device
from services.node_agent.memory.grants import Attempt, Grant
from services.node_agent.memory.note import Note

ATTEMPTS: Final = "attempts.json"
PASSABLE: Final = 0o711
CONNECT_AGAIN_S: Final = 0.05
RESPAWN_S: Final = 0.2
# How long a release may wait for a broker, for example one that is being restarted.
RELEASE_S: Final = 10.0
# How long a killed broker may take to end. In a driver's call it may never end.
DEATH_S: Final = 1.0
# How long the broker may take to open the drivers of an attempt's devices.
DEVICE_S: Final = 30.0
# How long a broker may take to answer about devices that it has open. This is less than a job's
# start may take by default, so the job is refused, and the scheduler tries other nodes first.
DEVICE_AGAIN_S: Final = 10.0
# A call of a vendor's driver takes at most this long.
DRIVER_CALL_S: Final = "10"

logger = logging.getLogger(__name__)

_attempts = msgspec.json.Decoder(dict[str, Attempt])


class Keeper:
    """The memory broker of one node, as the agent sees it. One per agent."""

    def __init__(self, folder: Path, devices: Sequence[Device]) -> None:
        self.folder = folder
        self._noted = Note(folder / ATTEMPTS)
        self.devices = {device.number: device for device in devices}
        # Why a device gives no memory, once the broker has answered about it; empty: it does.
        self.answers: dict[int, str] = {}
        # The devices about which this process of the broker has answered before.
        self.answered: set[int] = set()
        # Why a driver must not be called any more: it hung.
        self.closed: dict[str, str] = {}
        self.attempts: dict[str, Attempt] = {}
        self.grants: dict[int, Grant] = {}
        self.descriptors: dict[int, int] = {}
        self.restarts = 0
        self.pid = 0
        self._link: ControlLink | None = None
        self._arriving: Keeper | None = None
        self._ready = asyncio.Event()
        self._ended = asyncio.Event()
        self._releases: dict[str, asyncio.Future[None]] = {}
        self._task: asyncio.Task[None] | None = None
        self._pinging: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None

    @property
    def socket_path(self) -> str:
        return str(self.folder.resolve() / BROKER_SOCKET)

    async def open(self, living: Collection[str]) -> None:
        """Connect to the broker, or start one; `living` are the attempts that still run."""
        self.folder.mkdir(mode=PASSABLE, parents=True, exist_ok=True)
        self.folder.chmod(PASSABLE)
        before = await asyncio.to_thread(self.noted)
        self._task = asyncio.create_task(self._serve())
        self._pinging = asyncio.create_task(self._ping())
        await self._ready.wait()
        for key, attempt in before.items():
            if key in living and key not in self.attempts:
                logger.warning("the grants of attempt %s are lost: its pool counts as used", key)
                self._admit(msgspec.structs.replace(attempt, lost=True))
        for key in [each for each in self.attempts if each not in living]:
            await self.release(key)

    async def admit(self, attempt: Attempt) -> None:
        """Let an attempt ask for memory. Its supervisor need not run yet.

        Raises Refused if a device of it gives no memory, and OSError if it cannot be noted.
        """
        if self._task is None:
            try:
                async with asyncio.timeout(DEVICE_S):
                    await self.open(())
            except TimeoutError:
                raise Refused("pool: the memory broker did not start in time") from None
        await self._usable(attempt)
        self._admit(attempt)
        await self._note()

    def use(self, devices: Sequence[Device]) -> None:
        """Take over the node's devices as they are now."""
        for device in devices:
            if self.devices.get(device.number) != device:
                self.devices[device.number] = device
                self.answered.discard(device.number)
                self._tell_device(device)

    async def _usable(self, attempt: Attempt) -> None:
        """Ask the broker about each device of an attempt: it may hang since its last answer.

        Raises Refused.
        """
        for number in attempt.limits:
            if number in self.devices:
                self._tell_device(self.devices[number])
        within_s = DEVICE_AGAIN_S if self.answered.issuperset(attempt.limits) else DEVICE_S
        deadline = asyncio.get_running_loop().time() + within_s
        for number in attempt.limits:
            while number not in self.answers:
                if asyncio.get_running_loop().time() > deadline:
                    raise Refused(
                        f"pool: the memory broker gives no answer about device {number} within "
                        f"{within_s:.0f} s: the agent replaces it if it hangs, and its log says why"
                    )
                await asyncio.sleep(CONNECT_AGAIN_S)
            if why := self.answers[number]:
                raise Refused(f"pool: {why}")

    def _tell_device(self, device: Device) -> None:
        self.answers.pop(device.number, None)
        closed = self.closed.get(device.driver, "")
        message = {"op": "device", "device": msgspec.to_builtins(device), "closed": closed}
        self._send(message)

    async def _ping(self) -> None:
        """Replace a broker that does not answer."""
        while True:
            await asyncio.sleep(control_link.PING_S)
            if self._link is not None and not self._link.ping({"op": "ping"}):
                self._replace("does not answer")

    def _replace(self, why: str) -> None:
        """Kill the broker, and leave its socket to the next one: it may not end at once."""
        logger.error(
            "the memory broker in %s %s: it is killed and replaced; if this repeats, look for "
            "errors of the driver in the kernel's log and restart the machine",
            *(self.folder, why),
        )
        if self._link is not None:
            self._link.kill()
        with suppress(OSError):
            (self.folder / CONTROL_SOCKET).unlink()
        self._unlink()
        self._ended.set()

    async def release(self, key: str) -> bool:
        """Free all memory of an attempt; return whether the broker confirmed it in time.

        Harmless when repeated, and for an attempt without a pool.
        """
        if key not in self.attempts:
            return True
        done = self._releases.setdefault(key, asyncio.get_running_loop().create_future())
        self._send({"op": "release", "key": key})
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(done), RELEASE_S)
        if not done.done():
            return False
        try:
            await self._note()
        except OSError as error:
            # The note names an attempt that has ended, which the next agent releases again.
            logger.warning("cannot note that %s has no pool any more: %s", key, error)
        return True

    def owned(self) -> dict[tuple[str, int], int]:
        """Return the bytes that each attempt owns by (attempt, device)."""
        found: dict[tuple[str, int], int] = {}
        for attempt in self.attempts.values():
            if attempt.lost:
                found.update({(attempt.key, on): size for on, size in attempt.limits.items()})
        for grant in self.grants.values():
            place = (grant.key, grant.device)
            found[place] = found.get(place, 0) + grant.bytes
        return found

    async def close(self) -> None:
        """Let go of the broker. It lives on while attempts have pools, else it ends."""
        tasks = [each for each in (self._task, self._pinging) if each is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._unlink()
        if not self.attempts and self._process is not None and self._process.returncode is None:
            self._process.kill()
            with suppress(TimeoutError):
                async with asyncio.timeout(DEATH_S):
                    await self._process.wait()
        self._forget()

    def _admit(self, attempt: Attempt) -> None:
        self.attempts[attempt.key] = attempt
        self._send({"op": "admit", "attempt": msgspec.to_builtins(attempt)})

    # --- the connection ---

    async def _serve(self) -> None:
        while True:
            if not await self._connected():
                await self._start()
            await self._ended.wait()
            self._ended.clear()
            await asyncio.sleep(CONNECT_AGAIN_S)  # a link may end at once, again and again

    async def _connected(self) -> bool:
        """Connect to a living broker and take what it has; False if none listens."""
        link = await control_link.find(self.folder, CONTROL_SOCKET)
        if link is None:
            return False
        self._arriving = Keeper(self.folder, ())
        self._watch(link)
        for device in self.devices.values():
            self._tell_device(device)
        return True

    async def _start(self) -> None:
        """Start a broker and give it everything that the last one had."""
        with suppress(OSError):  # its process does not accept connections
            (self.folder / CONTROL_SOCKET).unlink()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "services.node_agent.memory", str(self.folder.resolve())),
                env={CALL_VARIABLE: DRIVER_CALL_S, **os.environ},
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:  # for example at the limit of processes
            logger.warning("the memory broker cannot be started, and is tried again: %s", error)
            await asyncio.sleep(RESPAWN_S)
            self._ended.set()
            return
        loop = asyncio.get_running_loop()
        until_s = loop.time() + control_link.ANSWER_S
        while True:
            if self._process.returncode is not None:
                logger.warning("the memory broker ended with %s", self._process.returncode)
                await asyncio.sleep(RESPAWN_S)
                self._ended.set()
                return
            try:
                link = ControlLink(self.folder, CONTROL_SOCKET)
                break
            except OSError:
                await asyncio.sleep(CONNECT_AGAIN_S)
            if loop.time() > until_s:
                self._process.kill()
                self._replace("does not begin")
                return
        self.restarts += 1
        self.answered.clear()
        self._arriving = None
        self._watch(link)
        self._send({"op": "restoring"})
        for device in self.devices.values():
            self._tell_device(device)
        for attempt in self.attempts.values():
            self._send({"op": "admit", "attempt": msgspec.to_builtins(attempt)})
        for number, grant in self.grants.items():
            message = {"op": "restore", "grant": msgspec.to_builtins(grant)}
            self._send(message, self.descriptors[number])
        self._send({"op": "restored"})
        for key in self._releases:
            self._send({"op": "release", "key": key})

    def _watch(self, link: ControlLink) -> None:
        self._link = link
        asyncio.get_running_loop().add_reader(link.fileno(), self._read, link)

    def _read(self, control: ControlLink) -> None:
        link, control.unanswered = control.link, 0
        try:
            link.receive()
            for message in link.messages():
                self._hear(link, message)
        except BlockingIOError:
            return
        except (Ended, BadMessage, OSError) as error:
            logger.info("the memory broker is away: %s", error or "ended")
            self._unlink()
            self._ended.set()

    def _unlink(self) -> None:
        if self._link is not None:
            asyncio.get_running_loop().remove_reader(self._link.fileno())
            self._link.close()
            self._link = None
        if self._arriving is not None:
            self._arriving._forget()
            self._arriving = None

    def _send(self, message: dict[str, Any], descriptor: int = -1) -> None:
        """Send to the broker. What gets lost is repeated when the next broker starts."""
        if self._link is not None:
            self._link.send(message, descriptor)

    def _hear(self, link: Link, message: dict[str, Any]) -> None:
        into = self._arriving or self
        match message["op"]:
            case "attempt":
                attempt = msgspec.convert(message["attempt"], Attempt)
                into.attempts[attempt.key] = attempt
            case "keep":
                into._keep(msgspec.convert(message["grant"], Grant), link.take_descriptor())
            case "drop":
                into._drop(message["grant"])
            case "released":
                self.attempts.pop(message["key"], None)
                done = self._releases.pop(message["key"], None)
                if done is not None and not done.done():
                    done.set_result(None)
            case "device":
                self.answers[message["number"]] = message["why"]
                self.answered.add(message["number"])
            case "hangs":
                self.closed[message["driver"]] = message["detail"]
                logger.warning("a driver hangs: %s; it gives no memory", message["detail"])
                self._replace("has a driver that hangs")  # it cannot end while the call hangs
                raise Ended
            case "ready":
                self.pid = int(message["pid"])
                self._adopt()
                self._ready.set()

    def _adopt(self) -> None:
        """Take over what a broker of an earlier agent sent, and tell it what it does not know."""
        if self._arriving is None:
            return
        mine, arrived = self.attempts, self._arriving
        self._arriving = None
        self._forget()
        self.attempts, self.grants = arrived.attempts, arrived.grants
        self.descriptors = arrived.descriptors
        for key, attempt in mine.items():
            if key not in self.attempts:
                self._admit(attempt)
        for key in self._releases:
            self._send({"op": "release", "key": key})

    # --- what is kept ---

    def _keep(self, grant: Grant, descriptor: int) -> None:
        self._drop(grant.grant)
        self.grants[grant.grant], self.descriptors[grant.grant] = grant, descriptor

    def _drop(self, number: int) -> None:
        self.grants.pop(number, None)
        descriptor = self.descriptors.pop(number, None)
        if descriptor is not None:
            os.close(descriptor)

    def _forget(self) -> None:
        for number in list(self.grants):
            self._drop(number)

    def noted(self) -> dict[str, Attempt]:
        """Return the attempts with pools that an earlier agent wrote down."""
        try:
            return _attempts.decode(self._noted.path.read_bytes())
        except (OSError, msgspec.DecodeError):
            return {}

    async def _note(self) -> None:
        """Write the attempts down, for an agent that finds no broker. Raises OSError."""
        await self._noted.write(msgspec.json.encode(self.attempts))
