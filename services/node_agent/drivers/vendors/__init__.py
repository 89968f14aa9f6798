"""One file for each vendor's binding, as small a protocol as they all keep.

Only the child (`child.py`) imports them: a call here may hang.

A binding is imported when its vendor is opened, for some raise on import where their library is
missing. Nothing but `Lost`, `NotThere` and `Refusal` is raised for what a device or a driver does.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeVar

from libs.common.errors import MusterError
from services.node_agent.drivers.readings import Command, Device, Done, Event, Lacking, Sample

Value = TypeVar("Value")

WHY_LETTERS_MAX: Final = 200


class NotThere(MusterError):
    """The vendor has nothing here, and why."""


class Lost(MusterError):
    """The device does not answer any more; others may."""


class Refusal(MusterError):
    """The driver did not do what it was told."""


class Vendor(Protocol):
    """`open` comes first, and again after a reset. A device is named by its PCI address."""

    def open(self) -> None:
        """Raises NotThere."""
        ...

    def devices(self) -> Sequence[str]:
        """In the vendor's own order.

        One that does not even tell its address (it is lost) is left out, the others stay.
        """
        ...

    def describe(self, device: str) -> Device: ...

    def sample(self, device: str) -> Sample: ...

    def events(self) -> Sequence[Event] | Lacking:
        """What happened since the last call; never waits."""
        ...

    def control(self, device: str, command: Command) -> Done | Lacking: ...


class Asking:
    """Asks a binding for one thing at a time.

    What is lacking is remembered: a card is not asked again for what it cannot tell.
    """

    def __init__(
        self, errors: tuple[type[Exception], ...], judge: Callable[[Any], str], what: str
    ) -> None:
        """`judge` says of an error LASTING, PASSING or GONE."""
        self.errors, self.judge, self.what = errors, judge, what
        self.lacking: dict[tuple[str, str], Lacking] = {}

    def __call__(
        self,
        device: str,
        name: str,
        call: Callable[..., Value],
        *arguments: Any,  # noqa: ANN401
    ) -> Value | Lacking:
        """Raises Lost."""
        known = self.lacking.get((device, name))
        if known is not None:
            return known
        try:
            return call(*arguments)
        except self.errors as error:
            verdict, found = self.judge(error), Lacking(words(error))
            if verdict == GONE:
                raise Lost(f"{self.what} {device} is lost: {words(error)}") from error
            if verdict == LASTING:
                self.lacking[device, name] = found
            return found


LASTING: Final = "lasting"
PASSING: Final = "passing"
GONE: Final = "gone"


def words(error: object) -> str:
    """One line."""
    return " ".join(str(error).split())[:WHY_LETTERS_MAX] or type(error).__name__


def given(value: Value | Lacking, otherwise: Value) -> Value:
    return otherwise if isinstance(value, Lacking) else value


def pci_address(text: str) -> str:
    """As sysfs names it: vendors write the domain with eight digits, or in capitals."""
    domain, _, rest = text.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"
