"""One node of the fabric test, inside its network namespace: the agent's real prober.

It prints its address, then reads one ProbeOrder (JSON) per line and prints one Measured per line.
"""

import asyncio
import sys

import msgspec

from libs.common.messages import ProbeOrder
from libs.common.process.clock import SystemClock
from services.node_agent.fabric.probes.allowance import Allowance
from services.node_agent.fabric.probes.prober import open_prober


async def main(host: str) -> None:
    prober = open_prober(host, SystemClock())
    # The test probes more often than an agent may.
    prober.allowance = Allowance(now_ns=0, saved_ns=1 << 62)
    print(prober.address, flush=True)
    orders = asyncio.StreamReader(limit=1 << 20)
    protocol = asyncio.StreamReaderProtocol(orders)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    while line := await orders.readline():
        found = await prober.probe(msgspec.json.decode(line, type=ProbeOrder))
        print(msgspec.json.encode(found).decode(), flush=True)
    await prober.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
