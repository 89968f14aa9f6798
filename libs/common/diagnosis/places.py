"""Find where a process is, by its Python stack: in a collective, at its device, in a lock. Pure.

Frames of the standard library and of installed packages say what the process does; the innermost
frame of the user's own code says where. Two ranks in the same collective are at the same place
whatever the collective does inside. Tests: tests/unit/test_diagnosis_places.py.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from libs.common.diagnosis.evidence import Frame

COLLECTIVE: Final = "collective"
DEVICE: Final = "device"
INPUT: Final = "input"
LOCK: Final = "lock"
SLEEP: Final = "sleep"
STORAGE: Final = "storage"
CODE: Final = "code"
UNKNOWN: Final = "unknown"
# A device that is waited for may itself be in a collective.
WAITS: Final = (COLLECTIVE, DEVICE)

# Functions in which a rank waits for the others, by the end of their names.
COLLECTIVES: Final = frozenset((
    "all_reduce", "allreduce", "all_reduce_coalesced", "all_gather", "allgather",
    "all_gather_into_tensor", "all_gather_object", "reduce_scatter", "reduce_scatter_tensor",
    "all_to_all", "alltoall", "all_to_all_single", "broadcast", "broadcast_object_list", "bcast",
    "barrier", "monitored_barrier", "gather", "gather_object", "scatter", "scatter_object_list",
    "reduce", "init_process_group", "synchronize", "wait_for_everyone", "rendezvous",
    "_sync_params_and_buffers",
))  # fmt: skip
# Parts of the paths of modules whose `synchronize` waits for the rank's own device.
DEVICE_FILES: Final = ("torch/cuda/", "torch/xpu/", "cupy/")
# Functions that wait for data, and parts of the paths of modules that load it.
INPUTS: Final = (
    "dataloader", "data_loader", "next_batch", "_next_data", "_get_data", "load_batch", "prefetch",
    "fetch_batch", "get_batch", "read_batch",
)  # fmt: skip
INPUT_FILES: Final = ("torch/utils/data/", "/webdataset/", "/nvidia/dali/")
LOCKS: Final = ("acquire", "_wait_for_tstate_lock", "join", "wait", "wait_for", "__enter__")
LOCK_FILES: Final = ("threading.py", "multiprocessing/synchronize.py", "filelock/", "queue.py")
# The kernel functions and system calls in which a thread waits, for calls that have no frame.
FUTEX: Final = "futex"
KERNEL: Final = (
    ("nanosleep", SLEEP),
    (FUTEX, LOCK),
    *((name, STORAGE) for name in ("nfs", "io_schedule", "fuse", "rpc_wait", "jbd2", "folio_wait")),
)
STORAGES: Final = ("save", "fsync", "write_checkpoint", "save_checkpoint", "load_checkpoint")
# Parts of the paths of code that is not the user's own.
FOREIGN: Final = (
    "/site-packages/", "/dist-packages/", "/lib/python3", "/lib64/python3", "<frozen", "<string>",
)  # fmt: skip
DISTRIBUTED_FILES: Final = ("torch/distributed/", "torch/nn/parallel/", "mpi4py/", "horovod/")


class Place(NamedTuple):
    """The activity of a process, its function, and the line in the user's own code."""

    kind: str
    name: str
    site: str

    @property
    def text(self) -> str:
        """The place in words."""
        if not self.site or self.site.partition(" (")[0] == self.name:
            return self.site or self.name or "an unknown place"
        return f"{self.name} at {self.site}"


def place_of(stack: Sequence[Frame], waits_in: str = "") -> Place:
    """Return the place of a stack, its innermost frame first.

    Without a stack it is the kernel function in which the process waits.
    """
    if not stack:
        return Place(UNKNOWN, waits_in, "")
    collective = _outermost_collective(stack)
    if collective is not None:
        caller = next((each for each in stack[collective + 1 :] if not is_foreign(each)), None)
        kind = DEVICE if _has_file(stack[collective : collective + 1], DEVICE_FILES) else COLLECTIVE
        return Place(kind, stack[collective].function, _site(caller or stack[collective]))
    own = next((each for each in stack if not is_foreign(each)), stack[0])
    return Place(_kind(stack, waits_in), own.function, _site(own))


def is_foreign(frame: Frame) -> bool:
    """Return whether a frame belongs to the standard library or to an installed package."""
    return any(part in frame.file for part in FOREIGN)


def _outermost_collective(stack: Sequence[Frame]) -> int | None:
    """Return the index of the last frame that is a collective, without those of other functions
    in between.

    So a `train` that is named like a collective counts only if a collective called it.
    """
    found = None
    for index, frame in enumerate(stack):
        if _is_collective(frame):
            found = index
        elif found is not None and not is_foreign(frame) and frame.file != stack[found].file:
            break
    return found


def _is_collective(frame: Frame) -> bool:
    if frame.function == "wait":
        return any(part in frame.file for part in DISTRIBUTED_FILES)
    return frame.function in COLLECTIVES


def _kind(stack: Sequence[Frame], waits_in: str) -> str:
    """Return what a process does. What the kernel sees counts more than the name of a function."""
    if _has_file(stack, INPUT_FILES):
        return INPUT
    if _is_lock(stack) or (FUTEX in waits_in and not is_foreign(stack[0])):
        return LOCK
    if _has_name(stack, INPUTS):
        return INPUT
    if any(frame.function in STORAGES for frame in stack):
        return STORAGE
    return next((kind for part, kind in KERNEL if part in waits_in), CODE)


def _has_name(stack: Sequence[Frame], names: Sequence[str]) -> bool:
    return any(name in frame.function.lower() for frame in stack for name in names)


def _has_file(stack: Sequence[Frame], files: Sequence[str]) -> bool:
    return any(part in frame.file for frame in stack for part in files)


def _is_lock(stack: Sequence[Frame]) -> bool:
    return any(
        frame.function in LOCKS and any(part in frame.file for part in LOCK_FILES)
        for frame in stack[:3]
    )


def _site(frame: Frame) -> str:
    file = frame.file.rpartition("/")[2]
    return f"{frame.function} ({file}:{frame.line})" if file else frame.function
