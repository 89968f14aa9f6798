"""Second process of tests/gpu/test_memory.py: it maps device memory of another process.

`read SIZE`: adopts a descriptor, maps it, sends back its first bytes and writes over them. `crash
SIZE`: adopts one, creates and maps as much of its own, says so, and waits to be killed.
"""

import os
import signal
import socket
import sys

from libs.job.device import context as public
from libs.job.device.context import Context
from libs.job.device.cuda import Cuda
from libs.job.device.vendor import Device
from libs.job.memory.cuda_driver import CudaDriver

FIRST_BYTES = 16


def main(verb: str, size: int, link: socket.socket) -> None:
    vendor = public.vendor("nvidia")
    assert isinstance(vendor, Cuda)
    driver, device = CudaDriver(vendor), vendor.devices()[0]
    _, (descriptor,), _, _ = socket.recv_fds(link, 1, 1)
    handle = driver.adopt(device.ordinal, descriptor, size)
    os.close(descriptor)
    address = driver.reserve(2 * size)
    driver.map(address, size, handle, device.ordinal)
    (read if verb == "read" else crash)(driver, device, address, size, link)


def read(driver: CudaDriver, device: Device, address: int, size: int, link: socket.socket) -> None:
    with Context(device) as context:
        link.sendall(bytes(context.read(address, FIRST_BYTES)))
        context.write(address, b"written by other")
    link.sendall(b"done")


def crash(driver: CudaDriver, device: Device, address: int, size: int, link: socket.socket) -> None:
    driver.map(address + size, size, driver.create(device.ordinal, size), device.ordinal)
    link.sendall(b"held")
    signal.pause()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), socket.socket(fileno=int(sys.argv[3])))
