"""`python -m services.node_agent.memory.gms FOLDER DRIVER CAPACITY`: serve resident weights.

The agent starts it (`resident_weights.py`). CAPACITY is a JSON map from device number to bytes.
"""

import json
import os
import resource
import signal
import sys

from services.node_agent.memory.gms.server import Server
from services.node_agent.memory.physical import physical_of


def main(folder: str, driver: str, capacity: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    os.umask(0o077)
    sizes = {int(device): int(size) for device, size in json.loads(capacity).items()}
    Server(folder, physical_of(driver), sizes).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
