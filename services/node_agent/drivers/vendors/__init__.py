"""The vendors' bindings, one file each, behind one small protocol.

Only the child process (`child.py`) imports them, because a call here may hang. A binding is
imported when its vendor is opened, because some bindings raise on import if their library is
missing. For faults of a device or a driver only `Lost`, `NotThere` and `Refusal` are raised.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeVar

from libs.common.errors import MusterError
from services.node_agent.drivers.readings import Command, Device, Done, Event, Lacking, Sample

Value = TypeVar("Value")

WHY_LETTERS_MAX: Final = 200


class NotThere(MusterError):
    """The vendor has no usable device on this machine; the text says why."""


class Lost(MusterError):
    """The device does not answer any more. Other devices may."""


class Refusal(MusterError):
    """The driver refused a command."""


class Vendor(Protocol):
    """The binding of one vendor. Its devices are named by their PCI addresses.

    The caller opens it first, and again after a reset.
    """

    def open(self) -> None:
        """Load the library. Raises NotThere."""
        ...

    def devices(self) -> Sequence[str]:
        """Return the addresses of the devices in the vendor's own order.

        A lost device whose address cannot be read is left out.
        """
        ...

    def describe(self, device: str) -> Device: ...

    def sample(self, device: str) -> Sample: ...

    def events(self) -> Sequence[Event] | Lacking:
        """Return the events since the last call. Never waits."""
        ...

    def control(self, device: str, command: Command) -> Done | Lacking: ...


class Asking:
    """Reads one value at a time from a binding.

    A value that a device lacks is remembered, so it is not read again.
    """

    def __init__(
        self, errors: tuple[type[Exception], ...], judge: Callable[[Any], str], what: str
    ) -> None:
        """Read with `judge`, which classifies an error as LASTING, PASSING or GONE.

        `errors` are the binding's exceptions, `what` is the vendor's name.
        """
        self.errors, self.judge, self.what = errors, judge, what
        self.lacking: dict[tuple[str, str], Lacking] = {}

    def __call__(
        self,
        device: str,
        name: str,
        call: Callable[..., Value],
        *arguments: Any,  # noqa: ANN401
    ) -> Value | Lacking:
        """Return the value of a call, or Lacking if the device lacks it. Raises Lost."""
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
    """Return the error's text in one line of bounded length."""
    return " ".join(str(error).split())[:WHY_LETTERS_MAX] or type(error).__name__


def given(value: Value | Lacking, otherwise: Value) -> Value:
    return otherwise if isinstance(value, Lacking) else value


def pci_address(text: str) -> str:
    """Return a PCI address as sysfs writes it.

    Vendors write the domain with eight digits, or in capitals.
    """
    domain, _, rest = text.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"
