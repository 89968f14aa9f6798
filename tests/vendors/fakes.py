"""The three libraries, built once per process; each test gets copies of its own, so that no state
of one test is seen by the next.
"""

import ctypes
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from libs.job.device.cuda import DESCRIPTION as CUDA
from libs.job.device.cuda import Cuda
from libs.job.device.driver_library import Description, Library
from libs.job.device.hip import DESCRIPTION as HIP
from libs.job.device.hip import Hip
from libs.job.device.level_zero import DESCRIPTION as LEVEL_ZERO
from libs.job.device.level_zero import LevelZero
from libs.job.device.vendor import Vendor
from libs.job.memory.cuda_driver import CudaDriver
from libs.job.memory.hip_driver import HipDriver
from libs.job.memory.level_zero_driver import LevelZeroDriver
from tests.drivers.fakes import Fakes, build

HERE: Final = Path(__file__).parent


class Driver(Protocol):
    """Methods of a MemoryDriver that the contract tests call."""

    name: str
    alignment: int

    def granularity(self, device: int) -> int: ...
    def create(self, device: int, size: int) -> int: ...
    def export(self, handle: int) -> int: ...
    def adopt(self, device: int, descriptor: int, size: int) -> int: ...
    def release(self, handle: int) -> None: ...
    def reserve(self, size: int) -> int: ...
    def unreserve(self, address: int, size: int) -> None: ...
    def map(self, address: int, size: int, handle: int, device: int) -> None: ...
    def unmap(self, address: int, size: int) -> None: ...


class Kind(NamedTuple):
    """One vendor: its library's source, and what is opened over it."""

    description: Description
    source: str
    vendor: Callable[[Library], Vendor]
    driver: Callable[[Library], Driver]
    # Functions by the step that a test makes fail, and the codes of a full device and a dead one.
    steps: dict[str, str]
    full: int
    lost: int


KINDS: Final = {
    "cuda": Kind(
        description=CUDA,
        source="cuda.c",
        vendor=Cuda,
        driver=lambda library: CudaDriver(Cuda(library)),
        steps={"create": "cuMemCreate", "access": "cuMemSetAccess", "unmap": "cuMemUnmap"}
        | {"init": "cuInit", "release": "cuMemRelease", "map": "cuMemMap"}
        | {"unreserve": "cuMemAddressFree", "export": "cuMemExportToShareableHandle"},
        full=2,
        lost=719,
    ),
    "hip": Kind(
        description=HIP,
        source="hip.c",
        vendor=Hip,
        driver=lambda library: HipDriver(Hip(library)),
        steps={"create": "hipMemCreate", "access": "hipMemSetAccess", "unmap": "hipMemUnmap"}
        | {"init": "hipInit", "release": "hipMemRelease", "map": "hipMemMap"}
        | {"unreserve": "hipMemAddressFree", "export": "hipMemExportToShareableHandle"},
        full=2,
        lost=719,
    ),
    "level_zero": Kind(
        description=LEVEL_ZERO,
        source="ze.c",
        vendor=LevelZero,
        driver=lambda library: LevelZeroDriver(LevelZero(library)),
        steps={
            "create": "zePhysicalMemCreate",
            "access": "zeVirtualMemMap",
            "unmap": "zeVirtualMemUnmap",
        }
        | {"init": "zeInit", "release": "zePhysicalMemDestroy", "map": "zeVirtualMemMap"}
        | {"unreserve": "zeVirtualMemFree", "export": "zePhysicalMemGetProperties"},
        full=0x70000003,
        lost=0x70000001,
    ),
}


def compiled(folder: Path, name: str, without: str = "") -> Path:
    kind = KINDS[name]
    return build(folder, kind.description.soname, HERE / kind.source, without=without)


class Fake:
    """One vendor's library of one test."""

    def __init__(self, name: str, library: Path, settings: Path) -> None:
        self.kind = KINDS[name]
        self.name = name
        self.path = library
        self._settings = Fakes(settings)
        self.lines: list[str] = []

    def tell(self, *lines: str) -> None:
        """Add settings and faults (tests/drivers/fake.h)."""
        self.lines += lines
        self._settings.tell(self.name, *self.lines)

    def fail(self, step: str, fault: int | str) -> None:
        """Let the function of a step return this code, or `hang`."""
        self.tell(f"{self.kind.steps[step]} * {fault}")

    def heal(self) -> None:
        self.lines = []
        self._settings.tell(self.name)

    def compiled_library(self) -> Library:
        return Library(self.kind.description, str(self.path))

    def vendor(self) -> Vendor:
        return self.kind.vendor(self.compiled_library())

    def driver(self) -> Driver:
        return self.kind.driver(self.compiled_library())

    def uses(self, device: int) -> int:
        """How often the process uses the device's context, as the library counts."""
        return int(ctypes.CDLL(str(self.path)).fake_uses(device))


def copied(name: str, built: Path, folder: Path) -> Fake:
    """A fake over a copy: a library at another path is another one to the linker."""
    place = folder / f"{name}.libraries"
    place.mkdir()
    return Fake(name, Path(shutil.copy(built, place)), folder)
