"""The typed error of all device calls: one class, one list of causes for all vendors, and the words
of the vendor's own driver.

Vendors have some 100 codes each; a caller acts on the few causes here. The numeric code, its name
and its text stay in the error, so that a person can look them up in the vendor's manual.
Tests: tests/vendors/test_errors.py.
"""

from enum import StrEnum


class Cause(StrEnum):
    """The cause of a failed device call, the same for all vendors."""

    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    INVALID_VALUE = "INVALID_VALUE"
    INVALID_HANDLE = "INVALID_HANDLE"
    INVALID_DEVICE = "INVALID_DEVICE"
    INVALID_CONTEXT = "INVALID_CONTEXT"
    NOT_INITIALISED = "NOT_INITIALISED"
    NO_DEVICE = "NO_DEVICE"
    NO_LIBRARY = "NO_LIBRARY"
    DRIVER_TOO_OLD = "DRIVER_TOO_OLD"
    NOT_SUPPORTED = "NOT_SUPPORTED"
    NOT_PERMITTED = "NOT_PERMITTED"
    ALREADY_MAPPED = "ALREADY_MAPPED"
    NOT_MAPPED = "NOT_MAPPED"
    PEER_UNREACHABLE = "PEER_UNREACHABLE"
    ALREADY_DONE = "ALREADY_DONE"
    DEVICE_LOST = "DEVICE_LOST"
    HANGS = "HANGS"
    CROSS_VENDOR = "CROSS_VENDOR"
    UNKNOWN = "UNKNOWN"


# What to do next. Causes that say it themselves have no entry.
REMEDIES = {
    Cause.OUT_OF_MEMORY: "Free device memory or ask for less.",
    Cause.INVALID_HANDLE: "Use a handle that this process created or adopted and did not release.",
    Cause.INVALID_DEVICE: "Use an index of muster.device.devices().",
    Cause.INVALID_CONTEXT: "Open a muster.device.Context for the device first.",
    Cause.NOT_INITIALISED: "Use devices in the process that opened them; start children with spawn,"
    " not fork.",
    Cause.NO_DEVICE: "Check that the job was given a device: echo $MUSTER_GPUS.",
    Cause.NO_LIBRARY: "Install the vendor's driver, or name its library in the environment.",
    Cause.DRIVER_TOO_OLD: "Install a newer driver.",
    Cause.PEER_UNREACHABLE: "Copy through the host: through_host=True.",
    Cause.DEVICE_LOST: "End this process: the device must be reset before it can be used.",
    Cause.HANGS: "End this process: a driver that hangs may hold locks that later calls need.",
}


class DeviceError(Exception):
    """A device call failed.

    Attributes:
        cause: the reason, the same for all vendors; equal to its own name as text.
        call: the function of the driver that failed (`cuMemCreate`).
        driver: `cuda`, `hip`, `level_zero` or `host`.
        code: the number that the driver returned; 0 if the call never reached the driver.
        name: the driver's own name of the code (`CUDA_ERROR_OUT_OF_MEMORY`); may be empty.
        text: the driver's own explanation; may be empty.
        on: the object and the values that the call failed on; may be empty.
    """

    def __init__(
        self,
        cause: str,
        call: str,
        *,
        driver: str,
        code: int = 0,
        name: str = "",
        text: str = "",
        on: str = "",
    ) -> None:
        self.cause = Cause(cause)
        self.call = call
        self.driver = driver
        self.code = code
        self.name = name
        self.text = text
        self.on = on
        super().__init__(self._sentence())

    def _sentence(self) -> str:
        """Return the message: the failed call, its object, the driver's text, and the next step."""
        code_text = (
            f"{self.name} ({self.code})" if self.name else f"code {self.code}" * bool(self.code)
        )
        what = ": ".join(part for part in (code_text or self.cause, self.text) if part)
        place = f" on {self.on}" if self.on else ""
        sentence = f"{self.driver}: {self.call} failed{place}: {what}".rstrip(".")
        remedy = REMEDIES.get(self.cause, "")
        return f"{sentence}. {remedy}".rstrip()

    def __reduce__(self) -> tuple[object, ...]:
        """Keep all fields when the error crosses a process border (multiprocessing, futures)."""
        return _restored, (type(self), dict(vars(self)))


def _restored(kind: type[DeviceError], fields: dict[str, object]) -> DeviceError:
    error = kind.__new__(kind)
    error.__dict__.update(fields)
    Exception.__init__(error, error._sentence())
    return error


class CrossVendorTransferError(DeviceError):
    """Two devices of different vendors cannot copy to each other directly."""

    def __init__(self, source: str, destination: str) -> None:
        super().__init__(
            Cause.CROSS_VENDOR,
            "copy",
            driver=f"{source} to {destination}",
            text="no vendor's driver reaches the memory of another vendor's device. Copy through"
            " the host (through_host=True), which needs two transfers over PCIe",
        )
