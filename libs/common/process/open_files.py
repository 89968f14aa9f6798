"""The limit of open files of a process, which is often 1,024 for programs that use select().

Muster's processes do not use select(), so they raise it. Programs of users start with the limit
that the process had first. Tests: tests/unit/test_open_files.py.
"""

import functools
import logging
import resource

logger = logging.getLogger(__name__)


@functools.cache
def first_limit() -> int:
    """Return the soft limit that this process had at the first call."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft


def raise_limit(most: int = 0) -> None:
    """Let this process have as many files open as its hard limit allows, or `most` if that is less.

    A process that starts other programs needs `most`: some of them close each possible descriptor,
    and a hard limit may be a thousand million.
    """
    first_limit()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most if most and (hard == resource.RLIM_INFINITY or most < hard) else hard
    if soft == wanted or (most and not 0 <= soft < most):
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:
        logger.warning("the limit of open files stays at %d: %s", soft, error)
