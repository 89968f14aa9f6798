"""A CUDA program without a toolkit: libcuda by ctypes.

Run by tests as a job and bare, it writes one JSON line.

`first`: when its first call and its first context were there (the wall clock, ns). `work SECONDS`:
how often it fills a GiB of the device's memory in that time. `hold MIB`: has so much of it until it
is ended. `open PATH`: what comes of opening a device node.
"""

import ctypes
import json
import os
import sys
import time

GIB = 1 << 30


class Cuda:
    """The first device that is visible."""

    def __init__(self) -> None:
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        self.first_ns = time.time_ns()
        self.device, self.context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(self.device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), self.device)
        self.call("cuCtxSetCurrent", self.context)

    def call(self, name: str, *arguments: object) -> None:
        code = getattr(self.driver, name)(*arguments)
        if code:
            sys.exit(f"{name} answered {code}")

    def memory(self, size: int) -> ctypes.c_uint64:
        found = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(found), ctypes.c_size_t(size))
        return found

    def fill(self, memory: ctypes.c_uint64, size: int) -> None:
        self.call("cuMemsetD32_v2", memory, ctypes.c_uint(0x5A5A5A5A), ctypes.c_size_t(size // 4))


def first() -> dict[str, object]:
    cuda = Cuda()
    cuda.fill(cuda.memory(1 << 20), 1 << 20)
    cuda.call("cuCtxSynchronize")
    uuid = (ctypes.c_ubyte * 16)()
    cuda.call("cuDeviceGetUuid", ctypes.byref(uuid), cuda.device)
    return {"first_ns": cuda.first_ns, "computed_ns": time.time_ns(), "uuid": bytes(uuid).hex()}


def work(seconds: float) -> dict[str, object]:
    """Steps of the same size, each waited for."""
    cuda = Cuda()
    memory, steps = cuda.memory(GIB), 0
    cuda.fill(memory, GIB)
    cuda.call("cuCtxSynchronize")
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        for _ in range(8):
            cuda.fill(memory, GIB)
        cuda.call("cuCtxSynchronize")
        steps += 8
    return {"steps_per_s": steps / (time.monotonic() - began)}


def hold(mib: int) -> dict[str, object]:
    cuda = Cuda()
    cuda.fill(cuda.memory(mib << 20), mib << 20)
    cuda.call("cuCtxSynchronize")
    print(json.dumps({"held_mib": mib}), flush=True)
    time.sleep(3_600)
    return {}


def opened(path: str) -> dict[str, object]:
    try:
        os.close(os.open(path, os.O_RDWR))
    except OSError as error:
        return {"error": error.strerror}
    return {"error": ""}


if __name__ == "__main__":
    verb, *rest = sys.argv[1:]
    done = {
        "first": first,
        "work": lambda: work(float(rest[0])),
        "hold": lambda: hold(int(rest[0])),
        "open": lambda: opened(rest[0]),
    }
    print(json.dumps(done[verb]()), flush=True)
