"""Keeps the memory, environment and descriptors of a process from other processes of the same user.

A job may run as the user of its agent, and of all services on a laptop. The kernel lets no process
without CAP_SYS_PTRACE trace a process that is not dumpable, or read its /proc/PID/environ, mem and
fd. Files of that user, seeds too, stay readable to such a job. Test:
tests/attack/test_tenant_users.py.
"""

import ctypes
from typing import Final

PR_SET_DUMPABLE: Final = 4

_libc = ctypes.CDLL(None, use_errno=True)


def close_to_others() -> None:
    """Close this process and its forks to others until they execute another program.

    They leave no core dump.
    """
    _libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
