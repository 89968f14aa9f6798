"""A pool over the broker's grants, with a broker that this test plays."""

import os

import pytest

from libs.job.device.errors import Cause, DeviceError
from libs.job.memory.broker_client import BrokerError, Granted
from libs.job.memory.host_driver import HostDriver
from libs.job.memory.job_pool import BrokerGrants, job_pool
from libs.job.memory.pool import Pool

MIB = 1 << 20


class Broker:
    """Grants memfds up to a limit, as the real one does."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.granted: dict[int, int] = {}
        self.asked: list[tuple[int, str]] = []
        self.short = 0

    def grant(self, device: int, size: int, purpose: str = "") -> Granted:
        self.asked.append((device, purpose))
        if sum(self.granted.values()) + size > self.limit:
            raise BrokerError("quota", f"{size} bytes are too many")
        number = len(self.asked)
        self.granted[number] = size
        descriptor = os.memfd_create("test")
        os.ftruncate(descriptor, size - self.short)
        return Granted(number, size, descriptor)

    def give_back(self, grant: int) -> None:
        if grant not in self.granted:
            raise BrokerError("grant", f"grant {grant} is not one that this job holds")
        del self.granted[grant]


def grants(broker: Broker, driver: HostDriver) -> BrokerGrants:
    return BrokerGrants(broker, driver, 3, "weights")  # type: ignore[arg-type]


def test_a_pool_takes_its_memory_from_the_broker_and_returns_it() -> None:
    broker, driver = Broker(8 * MIB), HostDriver()
    pool = Pool(driver, 0, grants(broker, driver), limit_bytes=16 * MIB)
    block = pool.allocate(5 * MIB)
    assert sum(broker.granted.values()) == 6 * MIB
    assert set(broker.asked) == {(3, "weights")}
    pool.free(block)
    pool.close()
    assert broker.granted == {}


def test_a_refusal_has_the_broker_s_words() -> None:
    broker, driver = Broker(2 * MIB), HostDriver()
    with pytest.raises(DeviceError, match="2097152 bytes are too many") as found:
        Pool(driver, 0, grants(broker, driver), limit_bytes=16 * MIB).allocate(4 * MIB)
    assert found.value.cause == Cause.OUT_OF_MEMORY
    assert broker.granted == {}


def test_memory_that_the_driver_does_not_adopt_goes_back() -> None:
    broker, driver = Broker(8 * MIB), HostDriver()
    broker.short = MIB
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(DeviceError):
        grants(broker, driver).grant(0, 2 * MIB)
    assert broker.granted == {}
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_a_return_that_the_broker_refuses_is_an_error() -> None:
    broker, driver = Broker(8 * MIB), HostDriver()
    source = grants(broker, driver)
    handle = source.grant(0, 2 * MIB)
    broker.granted.clear()
    with pytest.raises(DeviceError, match="not one that this job holds"):
        source.give_back(handle)


def test_a_process_without_a_pool_is_told_which_flag_gives_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("MUSTER_MEMORY_SOCKET", raising=False)
    with pytest.raises(BrokerError, match="Submit the job with --pool SIZE"):
        job_pool()
