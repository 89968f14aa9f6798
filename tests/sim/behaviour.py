"""The commands of simulated jobs."""

from collections.abc import Sequence

import msgspec


class Behaviour(msgspec.Struct, frozen=True):
    """Behaviour of a simulated command; it travels as the job's command.

    A server answers on its port after `ready_ms`. A job with `saves_ms` takes that long to save its
    work after the signal SAVE, and continues.
    """

    duration_ms: int
    exit_code: int = 0
    ignores_term: bool = False
    ready_ms: int = -1
    port: str = "{port}"
    saves_ms: int = 0

    def command(self) -> tuple[str, ...]:
        words = (
            "simulated",
            str(self.duration_ms),
            str(self.exit_code),
            "stubborn" if self.ignores_term else "polite",
        )
        if self.saves_ms:
            return (*words, "saves", str(self.saves_ms))
        return words if self.ready_ms < 0 else (*words, str(self.ready_ms), self.port)

    @classmethod
    def parse(cls, argv: Sequence[str]) -> "Behaviour":
        saves = len(argv) > 4 and argv[4] == "saves"
        serves = (int(argv[4]), argv[5]) if len(argv) > 4 and not saves else (-1, "")
        return cls(
            int(argv[1]), int(argv[2]), argv[3] == "stubborn", *serves, int(argv[5]) if saves else 0
        )
