"""The processes of all services, as they report themselves on the bus.

A process that has not been heard for AWAY_S is away, and forgotten after FORGOTTEN_S. Nodes and
users cannot publish on these subjects.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from libs.common import subjects
from libs.common.messages.member_messages import MemberSign, decode
from libs.common.process.clock import Clock
from libs.common.transport.bus import Bus

NS: Final = 1_000_000_000
AWAY_S: Final = 5
FORGOTTEN_S: Final = 600
MEMBERS_MAX: Final = 256


class Member(msgspec.Struct, frozen=True):
    """The last sign of a process, and when it came, by the boot clock.

    `lag` is the number of commits that it had not read then; None: it did not say what it has read.
    """

    service: str
    instance: str
    sign: MemberSign
    heard_ns: int
    lag: int | None


class Members:
    """All processes that this gateway has heard. `read_seq` returns what it has read itself."""

    def __init__(self, bus: Bus, clock: Clock, read_seq: Callable[[], int]) -> None:
        self.bus = bus
        self.read_seq = read_seq
        self.clock = clock
        self.heard: dict[str, Member] = {}

    async def listen(self) -> None:
        await self.bus.subscribe(subjects.member("*", "*"), self._on_sign)

    async def _on_sign(self, subject: str, data: bytes) -> None:
        try:
            sign = decode(data)
        except msgspec.DecodeError:
            return
        self._forget()
        if subject in self.heard or len(self.heard) < MEMBERS_MAX:
            _, service, instance = subject.split(".", 2)
            lag = max(0, self.read_seq() - sign.seq) if sign.seq else None
            self.heard[subject] = Member(service, instance, sign, self.clock.boot_ns(), lag)

    def _forget(self) -> None:
        oldest = self.clock.boot_ns() - FORGOTTEN_S * NS
        for subject in [name for name, each in self.heard.items() if each.heard_ns < oldest]:
            del self.heard[subject]

    def known(self) -> list[Member]:
        """Return all processes, by service and instance."""
        self._forget()
        return [self.heard[subject] for subject in sorted(self.heard)]

    def is_away(self, member: Member) -> bool:
        """Return whether the process sent no sign of life lately."""
        return self.clock.boot_ns() - member.heard_ns > AWAY_S * NS
