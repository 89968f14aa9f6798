"""The command line of Slurm's commands: short and long flags, as getopt_long reads them.

Pure. Each command has a table of the flags that it honours, and a table of those that it refuses,
with what to use instead. Tests: tests/unit/test_slurm_options.py.
"""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Final, NamedTuple

from libs.common.errors import Refused

# How many values a flag takes: none, one, or one after "=" only.
NONE: Final = "none"
ONE: Final = "one"
MAY: Final = "may"


class Option(NamedTuple):
    """A flag: its long name, its letter (empty: none), and whether it takes a value."""

    name: str
    short: str = ""
    takes: str = ONE


class Table(NamedTuple):
    """The flags of one command.

    `refused` holds, by long name, what to use instead of a flag of Slurm that is not supported;
    `letters` the names of refused letters. With `stops`, the first word that is not a flag ends the
    flags (srun's command).
    """

    program: str
    options: Sequence[Option]
    refused: Mapping[str, str]
    letters: Mapping[str, str] = {}
    stops: bool = False

    def named(self, name: str) -> Option | None:
        """Return the flag with this long name, or the only one that begins with it."""
        exact = [option for option in self.options if option.name == name]
        near = [option for option in self.options if option.name.startswith(name)]
        return exact[0] if exact else near[0] if len(near) == 1 else None

    def lettered(self, letter: str) -> Option | None:
        """Return the flag with this letter."""
        return next((option for option in self.options if option.short == letter), None)


class Given(NamedTuple):
    """The flags that were given, in order, and the other words."""

    flags: list[tuple[str, str]]
    rest: list[str]

    def has(self, name: str) -> bool:
        return any(flag == name for flag, _ in self.flags)

    def last(self, name: str, default: str = "") -> str:
        """Return the value of a flag; the last one counts, as in Slurm."""
        return next((value for flag, value in reversed(self.flags) if flag == name), default)

    def listed(self, name: str) -> list[str]:
        """Return the words of a flag that takes a list with commas."""
        return [word for word in self.last(name).split(",") if word]


def parse(table: Table, words: Sequence[str]) -> Given:
    """Return what the words mean. Raises Refused for a flag that the command does not have."""
    found = Given([], [])
    left = list(words)
    while left:
        word = left.pop(0)
        if word == "--":
            found.rest.extend(left)
            break
        if word.startswith("--"):
            found.flags.append(_long(table, word[2:], left))
        elif word.startswith("-") and word != "-":
            found.flags.extend(_letters(table, word[1:], left))
        elif table.stops:
            found.rest.extend((word, *left))
            break
        else:
            found.rest.append(word)
    return found


def _long(table: Table, text: str, left: list[str]) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    option = table.named(name)
    if option is None or name in table.refused:
        raise refusal(table, f"--{name}", name)
    if option.takes == NONE and equals:
        raise Refused(f"--{name} takes no value: remove '={value}'")
    if option.takes == ONE and not equals:
        value = _next(f"--{name}", left)
    return option.name, value


def _letters(table: Table, text: str, left: list[str]) -> list[tuple[str, str]]:
    """Return the flags of one word: letters without values, and at most one value at its end."""
    found: list[tuple[str, str]] = []
    while text:
        option = table.lettered(text[0])
        if option is None:
            raise refusal(table, f"-{text[0]}", table.letters.get(text[0], ""))
        rest, text = text[1:], text[1:]
        value = ""
        if option.takes == ONE:
            value, text = rest.removeprefix("=") or _next(f"-{option.short}", left), ""
        elif option.takes == MAY:
            value, text = rest.removeprefix("="), ""
        found.append((option.name, value))
    return found


def _next(flag: str, left: list[str]) -> str:
    if not left:
        raise Refused(f"{flag} needs a value")
    return left.pop(0)


def refusal(table: Table, flag: str, name: str) -> Refused:
    """Return the error for a flag that the command does not honour."""
    if name in table.refused:
        return Refused(f"{flag} is not supported: {table.refused[name]}")
    known = [option.name for option in table.options]
    near = next(iter(get_close_matches(name, known, 1, 0.7)), "") if name else ""
    meant = f" (did you mean --{near}?)" if near else ""
    return Refused(
        f"{flag} is not supported{meant}: the flags are "
        + ", ".join(f"--{each}" for each in sorted(known))
    )
