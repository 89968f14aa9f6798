"""Which ports of each address the jobs on nodes were given. Pure, and derived."""

from collections import Counter, defaultdict
from collections.abc import Collection
from typing import Final
from zlib import crc32

from libs.common.state.cluster import Cluster

PORT_FIRST: Final = 29_500
PORT_LAST: Final = 32_767
PORTS: Final = PORT_LAST - PORT_FIRST + 1


class Ports:
    """`used`: of each address, how many living jobs have a port there; two only when their nodes
    changed addresses since.
    """

    def __init__(self) -> None:
        self.used: Final[defaultdict[str, Counter[int]]] = defaultdict(Counter)

    def free(self, cluster: Cluster, address: str) -> int:
        """A port of that address which no living job was given, not one that was just given back.

        Clusters that share a machine begin at different ones.
        """
        used: Collection[int] = self.used.get(address, ())
        port = cluster.port_last or PORT_FIRST - 1 + crc32(cluster.cluster_id.encode()) % PORTS
        for _ in range(PORTS):
            port = port + 1 if port < PORT_LAST else PORT_FIRST
            if port not in used:
                return port
        return 0

    def fit(self, address: str, port: int) -> None:
        self.used[address][port] += 1

    def give_back(self, address: str, port: int) -> None:
        used = self.used[address]
        used[port] -= 1
        if not used[port]:
            del used[port]
