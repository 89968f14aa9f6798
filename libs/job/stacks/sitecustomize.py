"""Registers faulthandler in every Python interpreter of a job, then runs the user's sitecustomize.

A rank whose program ends by an exception also writes where that was. This file needs only built-in
modules, works from Python 3.8 on, and must never break a job: whatever fails, the interpreter goes
on without it. The stacks go to a memory file, which no other process can open unless it may trace
this one. Tests: tests/integration/test_diagnosis_stacks.py, test_diagnosis_endings.py.
"""

import atexit
import os
import sys

# The same as in `__init__.py`, which a job's interpreter may be unable to import.
SIGNAL = 57
MEMORY_FILE = "muster-stacks"
ENDING_PREFIX = "ended_rank_"
FOLDER_OF = "MUSTER_CHECKPOINT_FILE"
# Set by the first interpreter of a rank: those that it starts are not the rank.
FIRST_OF = "MUSTER_FIRST_OF_RANK"
FRAMES_MAX = 24
_files = []  # type: list[int]


def _register() -> None:
    """Open a memory file for this process and register the signal."""
    import faulthandler

    first = os.memfd_create(MEMORY_FILE)
    try:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
        appended = os.open(f"/proc/self/fd/{first}", flags)
    finally:
        os.close(first)
    faulthandler.register(SIGNAL, file=appended, all_threads=True)
    _files.append(appended)


def _register_again() -> None:
    """Give a forked child a file of its own."""
    try:
        old = _files[:]
        del _files[:]
        _register()
        for descriptor in old:
            os.close(descriptor)
    except Exception:  # nosec B110: a job runs without stacks
        pass


def _prepare_ending() -> None:
    """Remove the ending of an earlier process of this rank, and write one when this one ends."""
    path, rank = os.environ.get(FOLDER_OF, ""), os.environ.get("RANK", "")
    first = rank + "/" + os.environ.get("WORLD_SIZE", "1")
    if not path or not rank.isdigit() or os.environ.get(FIRST_OF) == first:
        return
    os.environ[FIRST_OF] = first
    name = os.path.join(os.path.dirname(path), ENDING_PREFIX + rank)
    if os.path.lexists(name):
        os.unlink(name)
    atexit.register(_write_ending, name)


def _write_ending(name: str) -> None:
    """Write the exception that ends this rank, if there is one, for the agent."""
    try:
        error = getattr(sys, "last_value", None)
        if error is None:
            return
        import json
        import time
        import traceback

        frames = [
            (frame.f_code.co_name, frame.f_code.co_filename, line)
            for frame, line in traceback.walk_tb(error.__traceback__)
        ]
        ending = {
            "world": int(os.environ.get("WORLD_SIZE", "1")),
            "at_ns": time.time_ns(),
            "error": type(error).__name__,
            "stack": frames[-FRAMES_MAX:][::-1],
        }
        with open(name, "w") as file:
            json.dump(ending, file)
    except Exception:  # nosec B110: a job ends without it
        pass


def _run_next() -> None:
    """Import the sitecustomize that this one hides, if there is one."""
    here = os.path.dirname(os.path.abspath(__file__))
    own = sys.modules.pop("sitecustomize", None)
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if getattr(error, "name", None) != "sitecustomize":
            raise
        if own is not None:
            sys.modules["sitecustomize"] = own


try:
    _register()
    os.register_at_fork(after_in_child=_register_again)
    _prepare_ending()
except Exception:  # nosec B110: a job runs without stacks
    pass
_run_next()
