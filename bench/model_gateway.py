"""A gateway process for `bench.gateway`: the real one, with the log and the bus in memory and the model's replicas as told.

`python -m bench.model_gateway PORT KEYS_FILE REPLICA_PORT...` serves the model `m`.
"""

import asyncio
import sys

from libs.common.bus_memory import MemoryBus
from libs.common.clock import SystemClock
from libs.common.cluster import Endpoint
from libs.common.kv import MemoryOutputs
from libs.common.log_memory import MemoryLog
from libs.common.model import JobId
from libs.common.service import run
from libs.common.settings import Settings
from services.api_gateway.gateway import Gateway
from services.api_gateway.openai.catalogue import Listed, Served
from services.api_gateway.service import serve
from services.api_gateway.views.snapshots import MemorySnapshots


async def main(settings: Settings, stop: asyncio.Event) -> None:
    port, keys, *replicas = sys.argv[1:]
    gateway = Gateway(MemoryLog(), MemoryBus(), SystemClock(), Settings(api_keys_file=keys), MemoryOutputs(), MemorySnapshots())
    ready = tuple(Endpoint(JobId(f"m-{number}"), "127.0.0.1", int(replica)) for number, replica in enumerate(replicas))
    gateway.models = Listed((Served("m", "default", 0), ready, ""))
    await serve(gateway, "127.0.0.1", int(port), stop)


if __name__ == "__main__":
    run("api_gateway", main)
