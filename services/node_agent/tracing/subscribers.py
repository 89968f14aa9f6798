"""Finds the tool that uses CUPTI in a process. Pure.

CUPTI has one subscriber for each process, so a second tracer gets an error or nothing. The
libraries that a process has loaded say who that is. Tests: tests/unit/test_trace_subscribers.py.
"""

from collections.abc import Iterable
from typing import Final

# A part of a library's name, and who brings it. All of these trace from the start of the process.
OTHERS: Final = {
    "libToolsInjection": "NVIDIA Nsight Systems",
    "libnsys": "NVIDIA Nsight Systems",
    "libInterceptorInjectionTarget": "NVIDIA Nsight Compute",
    "libTreeLauncherTargetInjection": "NVIDIA Nsight Compute",
    "libcuda-injection": "NVIDIA Nsight Compute",
    "libsanitizer-collection": "NVIDIA Compute Sanitizer",
    "libscorep_adapter_cupti": "Score-P",
    "libTAU": "TAU",
    "libhpcrun": "HPCToolkit",
    "libvampirtrace": "VampirTrace",
}
TORCH: Final = "libtorch_cpu"


def libraries_of(maps: str) -> tuple[str, ...]:
    """Return the files that a process has mapped, from the text of /proc/PID/maps."""
    found = (line.split(None, 5)[5:] for line in maps.splitlines())
    names = [name[0].rpartition("/")[2] for name in found if name and name[0].startswith("/")]
    return tuple(dict.fromkeys(names))


def has_torch(libraries: Iterable[str]) -> bool:
    """Return whether PyTorch is loaded."""
    return any(name.startswith(TORCH) for name in libraries)


def subscriber(libraries: Iterable[str]) -> str:
    """Return the other tracer that has CUPTI, with its library; empty if there is none."""
    for name in libraries:
        for part, who in OTHERS.items():
            if name.startswith(part):
                return f"{who} ({name})"
    return ""
