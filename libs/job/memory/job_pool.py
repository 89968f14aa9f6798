"""The pool of a job with `--pool` or `--host-pool`: its memory comes from the node's broker.

`job_pool()` needs the package msgspec, which `pip install 'muster-gpu[job]'` brings. Tests:
tests/unit/test_job_pool.py, tests/integration/test_pools_cluster.py.
"""

import os
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Final

from libs.job.device.errors import Cause, DeviceError
from libs.job.memory.driver import MemoryDriver
from libs.job.memory.host_driver import HostDriver
from libs.job.memory.pool import Pool

if TYPE_CHECKING:
    from libs.job.memory.broker_client import BrokerClient

# The device number of host memory.
HOST: Final = -1
# A pool has about so many chunks at most: the broker limits the grants of a job.
CHUNKS_MAX: Final = 1_024
_CLASSES: Final = {
    "cuda": ("libs.job.memory.cuda_driver", "CudaDriver"),
    "hip": ("libs.job.memory.hip_driver", "HipDriver"),
    "level_zero": ("libs.job.memory.level_zero_driver", "LevelZeroDriver"),
}


class BrokerGrants:
    """Memory from the node's broker, for a Pool. `device` is the job's number, HOST for the host.

    A refusal raises DeviceError OUT_OF_MEMORY with the broker's figures.
    """

    def __init__(
        self, client: "BrokerClient", driver: MemoryDriver, device: int, purpose: str = ""
    ) -> None:
        self._client = client
        self._driver = driver
        self._device = device
        self._purpose = purpose
        self._numbers: dict[int, int] = {}

    def grant(self, device: int, size: int) -> int:
        """Ask the broker for memory and adopt it; `device` is the driver's number."""
        from libs.job.memory.broker_client import BrokerError

        try:
            granted = self._client.grant(self._device, size, self._purpose)
        except BrokerError as error:
            raise DeviceError(
                Cause.OUT_OF_MEMORY, "grant", driver="broker", name=error.reason, text=str(error)
            ) from error
        try:
            handle = self._driver.adopt(device, granted.descriptor, granted.bytes)
        except DeviceError:
            self._client.give_back(granted.grant)
            raise
        finally:
            os.close(granted.descriptor)
        self._numbers[handle] = granted.grant
        return handle

    def give_back(self, handle: int) -> None:
        """Release the memory and return it to the broker."""
        from libs.job.memory.broker_client import BrokerError

        self._driver.release(handle)
        try:
            self._client.give_back(self._numbers.pop(handle))
        except BrokerError as error:
            raise DeviceError(
                Cause.UNKNOWN, "return", driver="broker", name=error.reason, text=str(error)
            ) from error


def job_pool(
    device: int = 0,
    *,
    purpose: str = "",
    shared: bool = True,
    synchronise: Callable[[], None] | None = None,
) -> Pool:
    """Return a pool over all that the job may have of a device (HOST: of the host's memory).

    `purpose` is what `muster memory` shows. Raises BrokerError without a pool, and DeviceError if
    the device's driver refuses.
    """
    from libs.job.memory.broker_client import BrokerClient, BrokerError

    client = BrokerClient.from_environment()
    told = client.stats()
    if device not in told["limits"]:
        flag = "--host-pool" if device == HOST else "--pool"
        raise BrokerError(
            "device", f"the job has no pool of device {device}: submit it with {flag}"
        )
    driver, ordinal = _driver(str(told["drivers"][device]), device)
    limit, step = int(told["limits"][device]), driver.granularity(ordinal)
    return Pool(
        driver,
        ordinal,
        BrokerGrants(client, driver, device, purpose),
        limit_bytes=limit,
        chunk_bytes=max(1, -(-limit // CHUNKS_MAX // step)) * step,
        shared=shared,
        synchronise=synchronise,
    )


def _driver(name: str, device: int) -> tuple[MemoryDriver, int]:
    """Return the driver of a device and its number there. Host memory has one device."""
    if name == "host":
        return HostDriver(), 0
    module, kind = _CLASSES[name]
    driver: MemoryDriver = getattr(import_module(module), kind)()
    return driver, device
