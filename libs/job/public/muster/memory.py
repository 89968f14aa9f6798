"""Memory pools of a job's process; docs/memory.md is for users."""

from libs.job.device.errors import Cause, DeviceError
from libs.job.memory.cupy_allocator import CupyAllocator, PooledMemory
from libs.job.memory.driver import Grants, LocalGrants, MemoryDriver
from libs.job.memory.host_driver import HostDriver
from libs.job.memory.job_pool import HOST, BrokerGrants, job_pool
from libs.job.memory.pool import Pool, PoolError, PoolStats
from libs.job.memory.torch_allocator import TorchAllocator, cpu_tensor, host_buffer

__all__ = [
    "HOST",
    "BrokerGrants",
    "Cause",
    "CupyAllocator",
    "DeviceError",
    "Grants",
    "HostDriver",
    "LocalGrants",
    "MemoryDriver",
    "Pool",
    "PoolError",
    "PoolStats",
    "PooledMemory",
    "TorchAllocator",
    "cpu_tensor",
    "host_buffer",
    "job_pool",
]
