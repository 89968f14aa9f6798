"""Program of tests/gpu/test_pool.py: a job that uses its memory pool on a real device.

`train`: the same steps of a small network with PyTorch's own allocator (in a child process) and on
the job's pool; one JSON line with both losses and both times. `cupy`: a sum over an array in the
pool. `fill MIB`: has so much of the pool
until it is ended, after it was refused more than the pool.
"""

import json
import subprocess
import sys
import time
from importlib import import_module
from typing import Any

MIB = 1 << 20
STEPS = 200
WARM = 20
WIDTH = 2_048


def train(on_pool: bool) -> dict[str, Any]:
    """Train with fixed numbers; return the last loss and milliseconds for a step."""
    torch: Any = import_module("torch")

    allocator: Any = None
    if on_pool:
        from muster.memory import TorchAllocator, job_pool

        allocator = TorchAllocator(
            lambda device, stream: job_pool(device, synchronise=torch.cuda.synchronize)
        )
        allocator.install()
    torch.manual_seed(7)
    layers = [torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH)]
    network = torch.nn.Sequential(*layers).cuda()
    optimiser = torch.optim.AdamW(network.parameters(), lr=1e-3)
    inputs = torch.randn(1_024, WIDTH).cuda()
    began = 0.0
    for step in range(STEPS + WARM):
        if step == WARM:
            torch.cuda.synchronize()
            began = time.perf_counter()
        loss = (network(inputs) - inputs).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    torch.cuda.synchronize()
    took = time.perf_counter() - began
    found: dict[str, Any] = {"loss": float(loss), "step_ms": 1e3 * took / STEPS}
    if allocator is not None:
        stats = [pool.stats() for pool in allocator.pools().values()]
        found["used"] = sum(each.used for each in stats)
        found["balanced"] = all(each.used + each.free == each.reserved for each in stats)
        found["refused"] = str(allocator.last_error or "")
        found["torch"] = torch.__version__
    return found


def sum_with_cupy() -> dict[str, Any]:
    cupy: Any = import_module("cupy")
    from muster.memory import CupyAllocator, job_pool

    pool = job_pool(0, synchronise=cupy.cuda.runtime.deviceSynchronize)
    CupyAllocator(pool).install()
    numbers = cupy.arange(64 * MIB, dtype=cupy.float64)
    used = pool.stats().used
    total = float(numbers.sum())
    del numbers
    return {"total": total, "used": used, "left": pool.stats().used, "cupy": cupy.__version__}


def fill(mib: int) -> None:
    from muster.memory import DeviceError, job_pool

    pool = job_pool(0, purpose="weights")
    try:
        pool.allocate(1 << 40)
        refused = ""
    except DeviceError as error:
        refused = str(error)
    pool.allocate(mib * MIB)
    print(json.dumps({"held_mib": mib, "refused": refused}), flush=True)
    time.sleep(3_600)


if __name__ == "__main__":
    verb, *rest = sys.argv[1:]
    if verb == "fill":
        fill(int(rest[0]))
    elif verb == "cupy":
        print(json.dumps(sum_with_cupy()), flush=True)
    elif verb == "alone":
        print(json.dumps(train(on_pool=False)), flush=True)
    else:
        child = [sys.executable, "-P", __file__, "alone"]
        alone = json.loads(subprocess.run(child, capture_output=True, check=True).stdout)
        print(json.dumps({"pool": train(on_pool=True), "alone": alone}), flush=True)
