"""What a line of the kernel's log says of a device: Xids of NVIDIA, RAS and faults of AMD, hangs of Intel. Pure.

Only lines that the kernel itself wrote count (what a user writes into /dev/kmsg bears another facility), and only those that begin as the
driver's own: the kernel repeats strings of users in its lines (mount options, names of processes), but never at their beginning.
Formats: Documentation/ABI/testing/dev-kmsg ("priority,sequence,microseconds,flags;text"), and the drivers' own texts.
"""

import re
from typing import Final

import msgspec

KERNEL_FACILITY: Final = 0
PRIORITY_BITS: Final = 3
TEXT_MAX: Final = 300

# For a MIG instance the driver writes the instance's number behind the device's address.
XID: Final = re.compile(r"NVRM: Xid \(PCI:([0-9a-f:.]+)(?: GPU-I:\d+)?\): (\d+)(?:, (.*))?", re.IGNORECASE)
PID: Final = re.compile(r"\bpid='?(\d+)")
ADDRESS: Final = r"([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])"
# Vendor, error, and what its line begins with; the address is the first group. No part of it may stand for a string of a user's.
AMD: Final = rf"amdgpu {ADDRESS}: (?:amdgpu: )?"
BLOCK: Final = r"\[[a-z0-9_]+\] "
INTEL: Final = rf"(?:xe|i915) {ADDRESS}: \[drm\] (?:\*ERROR\* )?(?:(?:Tile\d+: )?GT\d+: )?"
TOLD: Final = tuple(
    (vendor, error, re.compile(pattern, re.IGNORECASE))
    for vendor, error, pattern in (
        ("amd", "uncorrectable", rf"{AMD}[a-z0-9 :,{{}}]*?\d+ uncorrectable hardware errors detected in"),
        ("amd", "page_fault", rf"{AMD}(?:{BLOCK})?(?:no-retry |retry )?page fault \("),
        ("amd", "driver_reset", rf"{AMD}GPU reset begin"),
        ("intel", "blocked", rf"{INTEL}CRITICAL: Xe has declared device [0-9a-f:.]+ as wedged"),
        ("intel", "hang", rf"{INTEL}(?:Engine reset|GPU HANG)"),
    )
)


class Line(msgspec.Struct, frozen=True):
    """`pci_bus` as the line has it: of an Xid without the function. `pid` 0: not told."""

    vendor: str
    pci_bus: str
    error: str
    text: str
    pid: int = 0


def parse(record: str) -> Line | None:
    """None for what is not the kernel's, or not about a device."""
    head, _, text = record.partition(";")
    priority = head.partition(",")[0]
    if not priority.isdecimal() or int(priority) >> PRIORITY_BITS != KERNEL_FACILITY:
        return None
    if (xid := XID.match(text)) is not None:
        pid = PID.search(text)
        return Line("nvidia", xid[1].lower(), f"xid {int(xid[2])}", (xid[3] or "")[:TEXT_MAX], int(pid[1]) if pid is not None else 0)
    told = ((vendor, error, found) for vendor, error, pattern in TOLD if (found := pattern.match(text)) is not None)
    return next((Line(vendor, found[1].lower(), error, text[:TEXT_MAX]) for vendor, error, found in told), None)


def is_at(pci_bus: str, told: str) -> bool:
    """Whether a device's address is the one that was told, which may lack the function, and have a longer domain."""
    address = pci_bus.lower().rpartition(".")[0] or pci_bus.lower()
    said = told.rpartition(".")[0] or told
    return bool(address) and _domain(address) == _domain(said)


def _domain(address: str) -> str:
    domain, _, rest = address.partition(":")
    return f"{domain.lstrip('0').zfill(4)}:{rest}"
