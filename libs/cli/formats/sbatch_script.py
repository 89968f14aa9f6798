"""The flags of a script with `#SBATCH` lines, and the warnings about them. Pure. See sbatch.py."""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from libs.cli.formats import sbatch_values as values
from libs.common.errors import Refused

T = TypeVar("T")


class Flag(NamedTuple):
    """A flag's value and the line where it stands; line 0 is the command line."""

    line: int
    value: str


class Script(NamedTuple):
    """The flags of a script by name (the last one counts, as in Slurm), and the warnings.

    `also` are flags that the caller honours itself. `on_each_node`: the command is meant to run on
    each node, as with srun, so that no warning says so.
    """

    name: str
    flags: dict[str, Flag]
    warned: list[tuple[int, str]]
    also: tuple[str, ...] = ()
    on_each_node: bool = False

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(f"{self._place(line)}{text}" for line, text in sorted(self.warned))

    def _place(self, line: int) -> str:
        return f"{self.name}:{line}: " if line else ""

    def warn(self, line: int, text: str) -> None:
        self.warned.append((line, text))

    def note(self, flag: str, text: str) -> None:
        self.warn(self.flags[flag].line, f"--{flag}: {text}")

    def value(self, flag: str, read: Callable[[str], T], default: T) -> T:
        """Return the parsed value of a flag, or `default` without it. Raises Refused."""
        if flag not in self.flags:
            return default
        try:
            return read(self.flags[flag].value)
        except ValueError as error:
            raise self.fault(flag, str(error)) from None

    def number(self, flag: str) -> int:
        """Return the number of a flag, or 0 without it."""
        return self.value(flag, values.number, 0)

    def words(self, flag: str) -> list[str]:
        """Return the comma-separated words of a flag."""
        return values.listed(self.flags[flag].value) if flag in self.flags else []

    def fault(self, flag: str, text: str) -> Refused:
        line, value = self.flags[flag]
        return Refused(f"{self._place(line)}--{flag}={value}: {text}")
