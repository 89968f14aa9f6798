"""`python -m services.node_agent.memory FOLDER`: run a node's memory broker.

The agent starts it and names the devices (`keeper.py`).
"""

import os
import resource
import signal
import sys

from services.node_agent.memory.broker import Broker


def main(folder: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    os.umask(0o077)
    Broker(folder).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
