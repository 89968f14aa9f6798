"""The ports that jobs on nodes hold, by address.

Pure, and derived.
"""

from collections import Counter, defaultdict
from collections.abc import Collection
from typing import Final
from zlib import crc32

from libs.common.state.cluster import Cluster

PORT_FIRST: Final = 29_500
PORT_LAST: Final = 32_767
PORTS: Final = PORT_LAST - PORT_FIRST + 1


class Ports:
    """The ports of living jobs.

    `used` counts the living jobs on each port of each address. A count of 2 occurs only when nodes
    changed their addresses.
    """

    def __init__(self) -> None:
        self.used: Final[defaultdict[str, Counter[int]]] = defaultdict(Counter)

    def free(self, cluster: Cluster, address: str) -> int:
        """Return a port of that address that no living job holds, preferring ports that were not
        used lately.

        Clusters that share a machine start at different ports. Returns 0 if all are in use.
        """
        used: Collection[int] = self.used.get(address, ())
        port = cluster.port_last or PORT_FIRST - 1 + crc32(cluster.cluster_id.encode()) % PORTS
        for _ in range(PORTS):
            port = port + 1 if port < PORT_LAST else PORT_FIRST
            if port not in used:
                return port
        return 0

    def fit(self, address: str, port: int) -> None:
        """Count a job on this port."""
        self.used[address][port] += 1

    def give_back(self, address: str, port: int) -> None:
        """Count one job less on this port."""
        used = self.used[address]
        used[port] -= 1
        if not used[port]:
            del used[port]
