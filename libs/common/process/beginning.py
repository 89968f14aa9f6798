"""Turns the garbage collector off while a service's process imports its modules.

Imports make hundreds of thousands of objects that stay, and the collector would look at them again
and again: a tenth of the start of a gateway. `service.run` turns it on, so this is for processes
that call it. Others, such as a test or a command on the archive, keep their collector.
"""

import gc
import sys
from typing import Final

# What `python -m` runs in the process of a service. Audit runs a command if it has arguments.
AUDIT: Final = "services.audit.__main__"
SERVICES: Final = (
    "services.scheduler.__main__",
    "services.quota.__main__",
    "services.api_gateway.__main__",
    "services.node_agent.__main__",
    AUDIT,
)


def _begin() -> None:
    found = getattr(sys.modules.get("__main__"), "__spec__", None)
    name = "" if found is None else found.name
    if name in SERVICES and (name != AUDIT or len(sys.argv) == 1):
        gc.disable()


_begin()
