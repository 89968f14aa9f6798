"""Device errors in the kernel's log: Xids and SXids of NVIDIA, RAS and faults of AMD, hangs of
Intel. Pure.

Only lines of the kernel itself count: lines that users write to /dev/kmsg have another facility. A
line must begin as the driver's own, because the kernel repeats strings of users in its lines (mount
options, process names), but never at their beginning. Formats: Documentation/ABI/testing/dev-kmsg
("priority,sequence,microseconds,flags;text"), and the drivers' own texts.
"""

import re
from typing import Final

import msgspec

from libs.common.devices.error_catalogue import SXID_FATAL, SXID_NON_FATAL

KERNEL_FACILITY: Final = 0
PRIORITY_BITS: Final = 3
TEXT_MAX: Final = 300

# For a MIG instance the driver appends the number of the GPU instance, and perhaps of the compute
# instance, to the device's address.
XID: Final = re.compile(
    r"NVRM: Xid \(PCI:([0-9a-f:.]+)(?: GPU-I:(\d+))?(?: GPU-CI:\d+)?\): (\d+)(?:, (.*))?",
    re.IGNORECASE,
)
# The lines after an SXid with its details (Severity, Data) have the same number and neither word.
SXID_LINE: Final = re.compile(
    r"(nvidia-nvswitch\d*): SXid \(PCI:([0-9a-f:.]+)\): (\d+), (Fatal|Non-fatal)(?:, (.*))?",
    re.IGNORECASE,
)
SXID_KINDS: Final = {"fatal": SXID_FATAL, "non-fatal": SXID_NON_FATAL}
PID: Final = re.compile(r"\bpid='?(\d+)")
ADDRESS: Final = r"([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])"
# Vendor, error, and what its line begins with; the address is the first group. No part of it may
# stand for a string of a user's.
AMD: Final = rf"amdgpu {ADDRESS}: (?:amdgpu: )?"
BLOCK: Final = r"\[[a-z0-9_]+\] "
INTEL: Final = rf"(?:xe|i915) {ADDRESS}: \[drm\] (?:\*ERROR\* )?(?:(?:Tile\d+: )?GT\d+: )?"
TOLD: Final = tuple(
    (vendor, error, re.compile(pattern, re.IGNORECASE))
    for vendor, error, pattern in (
        (
            "amd",
            "uncorrectable",
            rf"{AMD}[a-z0-9 :,{{}}]*?\d+ uncorrectable hardware errors detected in",
        ),
        ("amd", "page_fault", rf"{AMD}(?:{BLOCK})?(?:no-retry |retry )?page fault \("),
        ("amd", "driver_reset", rf"{AMD}GPU reset begin"),
        ("intel", "blocked", rf"{INTEL}CRITICAL: Xe has declared device [0-9a-f:.]+ as wedged"),
        ("intel", "hang", rf"{INTEL}(?:Engine reset|GPU HANG)"),
    )
)


class Line(msgspec.Struct, frozen=True):
    """One error line.

    `pci_bus` is as written: without the function for an Xid, the switch's for an SXid. `pid` 0: not
    given. `instance`: the number of the MIG instance, if given. `kind`: see `error_catalogue.Seen`;
    only errors of switches have one.
    """

    vendor: str
    pci_bus: str
    error: str
    text: str
    pid: int = 0
    instance: int | None = None
    kind: str = ""


def parse(record: str) -> Line | None:
    """Return the error of a record; None if it is not the kernel's or not about a device."""
    head, _, text = record.partition(";")
    priority = head.partition(",")[0]
    if not priority.isdecimal() or int(priority) >> PRIORITY_BITS != KERNEL_FACILITY:
        return None
    if (xid := XID.match(text)) is not None:
        return _xid(xid, PID.search(text))
    if (sxid := SXID_LINE.match(text)) is not None:
        return _sxid(sxid)
    told = (
        (vendor, error, found)
        for vendor, error, pattern in TOLD
        if (found := pattern.match(text)) is not None
    )
    return next(
        (Line(vendor, found[1].lower(), error, text[:TEXT_MAX]) for vendor, error, found in told),
        None,
    )


def _xid(found: re.Match[str], pid: re.Match[str] | None) -> Line:
    return Line(
        vendor="nvidia",
        pci_bus=found[1].lower(),
        error=f"xid {int(found[3])}",
        text=(found[4] or "")[:TEXT_MAX],
        pid=int(pid[1]) if pid is not None else 0,
        instance=int(found[2]) if found[2] is not None else None,
    )


def _sxid(found: re.Match[str]) -> Line:
    switch, address, number, severity, rest = found.groups()
    return Line(
        vendor="nvidia",
        pci_bus=address.lower(),
        error=f"sxid {int(number)}",
        text=f"{switch} ({address.lower()}): {severity}, {rest or ''}".rstrip(", ")[:TEXT_MAX],
        kind=SXID_KINDS[severity.lower()],
    )


def is_at(pci_bus: str, reported: str) -> bool:
    """Return whether an address is the reported one, which may lack the function or have a longer
    domain.
    """
    address = pci_bus.lower().rpartition(".")[0] or pci_bus.lower()
    reported_address = reported.rpartition(".")[0] or reported
    return bool(address) and _domain(address) == _domain(reported_address)


def _domain(address: str) -> str:
    domain, _, rest = address.partition(":")
    return f"{domain.lstrip('0').zfill(4)}:{rest}"
