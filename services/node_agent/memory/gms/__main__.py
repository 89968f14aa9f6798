"""`python -m services.node_agent.memory.gms FOLDER DRIVER`: serve resident weights.

The agent starts it and names the devices (`resident_weights.py`).
"""

import os
import resource
import signal
import sys

from services.node_agent.memory.device_memory import source_of
from services.node_agent.memory.gms.server import Server


def main(folder: str, driver: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    os.umask(0o077)
    Server(folder, source_of(driver)).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
