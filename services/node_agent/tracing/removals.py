"""Removes the folders of ended attempts in a thread of its own.

A job can leave millions of files, and the event loop renews the leases of the whole node, so the
loop only renames a folder. The thread waits GATHER_S, removes all that were renamed by then, and
ends when nothing is left. It is a daemon: an agent that stops does not wait for it, and the next
agent removes the rest. Tests: tests/attack/test_trace_door.py.
"""

import contextlib
import os
import threading
import time
from typing import Final

from libs.common.safety.folder_walk import remove_tree

# How the names of folders begin that are to be removed.
GONE: Final = "gone-"
NAME_BYTES: Final = 8
# Short jobs end often: one thread serves all that ended in this time.
GATHER_S: Final = 1.0


class Removals:
    """The folders below `root` that are to be removed. Their names are the queue."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.lock = threading.Lock()
        self.running = self.asked = False

    def put(self, folder: str) -> None:
        """Rename a folder of `root`, and let the thread remove it."""
        with contextlib.suppress(OSError):
            os.rename(folder, f"{self.root}/{GONE}{os.urandom(NAME_BYTES).hex()}")
        self.start()

    def start(self) -> None:
        """Let the thread remove what was renamed, by an earlier agent too."""
        with self.lock:
            self.asked = True
            if self.running:
                return
            self.running = True
        threading.Thread(target=self._run, name="trace-removals", daemon=True).start()

    def _run(self) -> None:
        while self._goes_on():
            time.sleep(GATHER_S)
            for name in _names(self.root):
                if name.startswith(GONE):
                    remove_tree(f"{self.root}/{name}")

    def _goes_on(self) -> bool:
        with self.lock:
            self.running, self.asked = self.asked, False
            return self.running


def _names(folder: str) -> list[str]:
    with contextlib.suppress(OSError):
        return os.listdir(folder)
    return []
