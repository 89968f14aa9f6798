"""The meaning of a device error and its verdict: one pure function over rows of data
(`error_rows.py` reads them).

The first source that has a verdict wins: the driver's own recovery field, Xid 154 (the same from
the kernel), the catalogue's row for this vendor, product and driver, then the site's own rows where
the catalogue leaves it open. An unknown error drains the device and resets it; it ends no job.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec

IGNORE: Final = "ignore"
RESTART_JOB: Final = "restart_job"
DRAIN_THEN_RESET: Final = "drain_then_reset"
RESET: Final = "reset"
REBOOT_NODE: Final = "reboot_node"
REPLACE: Final = "replace"
# From the mildest to the hardest.
VERDICTS: Final = (IGNORE, RESTART_JOB, DRAIN_THEN_RESET, RESET, REBOOT_NODE, REPLACE)
# Verdicts that end the jobs of the device. With RESTART_JOB the device stays in use.
ENDS_JOBS: Final = (RESTART_JOB, RESET, REBOOT_NODE, REPLACE)
KEEPS_DEVICE: Final = (IGNORE, RESTART_JOB)
RESETS: Final = (DRAIN_THEN_RESET, RESET)

APPLICATION: Final = "application"
HARDWARE: Final = "hardware"

# The reach of an error. `device`: all jobs that have the device. `instance`: the jobs in the MIG
# instance that the driver names (all that have the device if it names none). `fabric`: the jobs
# with several GPUs of the node, and the device then serves jobs with one GPU there. `new_work`: no
# running job; the device takes no new jobs.
DEVICE: Final = "device"
INSTANCE: Final = "instance"
FABRIC: Final = "fabric"
NEW_WORK: Final = "new_work"
REACHES: Final = (DEVICE, INSTANCE, FABRIC, NEW_WORK)
Reach = Literal["device", "instance", "fabric", "new_work"]

# Errors of an NVSwitch. Each has a number, and its line says which of the two kinds it is: a
# catalogue row names a number or a kind.
SXID: Final = "sxid "
SXID_FATAL: Final = "sxid fatal"
SXID_NON_FATAL: Final = "sxid non-fatal"
XID_154: Final = "xid 154"
# NVML's recovery actions by number, as in Xid 154. 0 is none: the device needs nothing, although
# the job may have ended.
NO_ACTION: Final = 0
RECOVERY_ACTIONS: Final[dict[int, str]] = {
    1: RESET,
    2: REBOOT_NODE,
    3: DRAIN_THEN_RESET,
    4: DRAIN_THEN_RESET,
    5: DRAIN_THEN_RESET,
    6: RESET,
    7: REBOOT_NODE,
}
TOLD_BY_154: Final = re.compile(
    r"changed from 0x[0-9a-f]+ \(.*\) to 0x([0-9a-f]+) \(", re.IGNORECASE
)

NVIDIA_GUIDANCE: Final = "nvidia-guidance"
PLATFORM_DESIGN: Final = "platform-design"
CATALOGUES: Final = (NVIDIA_GUIDANCE, PLATFORM_DESIGN)


class Row(msgspec.Struct, frozen=True):
    """One error, or several with the same verdict.

    `products` are words of the model's name, `driver` is the first driver version to which the row
    applies; empty: any. `vendor` empty: any. `verdict` empty: the error is known, but left open.
    `reach`: see REACHES. For an error that a reading shows, `most` is the largest normal reading,
    or its largest normal rise within `window_s`.
    """

    vendor: str
    errors: tuple[str, ...]
    what: str
    verdict: str
    cause: str = HARDWARE
    reach: Reach = "device"
    products: tuple[str, ...] = ()
    driver: str = ""
    most: int = 0
    window_s: int = 0


class Catalogue(msgspec.Struct, frozen=True):
    """A catalogue of errors. The first matching row counts."""

    edition: str
    rows: tuple[Row, ...]


class Seen(msgspec.Struct, frozen=True):
    """An error of a device.

    `recovery` is the driver's recovery field, read after the error; None if there is none. `kind`
    is a name that a catalogue row may have in place of the error (SXID_FATAL, SXID_NON_FATAL);
    empty: none.
    """

    vendor: str
    model: str
    driver: str
    error: str
    text: str = ""
    recovery: int | None = None
    kind: str = ""


class Judgement(msgspec.Struct, frozen=True):
    """The verdict on an error. `by` is the source that decided. `reach`: see REACHES."""

    verdict: str
    cause: str
    by: str
    reach: Reach = "device"


def judge(seen: Seen, catalogue: Catalogue, site: Mapping[str, str]) -> Judgement:
    """Return the verdict on an error."""
    row = row_of(seen, catalogue.rows)
    cause, reach = (row.cause, row.reach) if row is not None else (HARDWARE, DEVICE)
    if seen.recovery is not None and (
        seen.recovery == NO_ACTION or seen.recovery in RECOVERY_ACTIONS
    ):
        return _recovery(seen.recovery, row, cause, "recovery field")
    if (
        seen.error == XID_154
        and (reported := TOLD_BY_154.search(seen.text)) is not None
        and int(reported[1], 16) in (NO_ACTION, *RECOVERY_ACTIONS)
    ):
        return _recovery(int(reported[1], 16), row, cause, XID_154)
    if row is not None and row.verdict:
        return Judgement(row.verdict, cause, "catalogue", reach)
    for name in (seen.error, seen.kind):
        if name in site:
            return Judgement(site[name], cause, "site", reach)
    return Judgement(DRAIN_THEN_RESET, cause, "default", reach)


def _recovery(action: int, row: Row | None, cause: str, by: str) -> Judgement:
    """Return the verdict for a recovery action of the driver.

    The action is about the device only, so a job that the error has lost ends anyway. A verdict
    that ends the jobs of a device ends all of them.
    """
    loses_job = row is not None and row.verdict in ENDS_JOBS
    reach = row.reach if row is not None else DEVICE
    if action == NO_ACTION:
        return Judgement(RESTART_JOB if loses_job else IGNORE, cause, by, reach)
    verdict = RECOVERY_ACTIONS[action]
    return Judgement(verdict, HARDWARE, by, DEVICE if verdict in ENDS_JOBS else reach)


def is_of_fabric(error: str) -> bool:
    """Return whether an error belongs to the node's NVSwitches, and so to no single device."""
    return error.startswith(SXID)


def row_of(seen: Seen, rows: Sequence[Row]) -> Row | None:
    return next((row for row in rows if _fits(row, seen)), None)


def _fits(row: Row, seen: Seen) -> bool:
    words = seen.model.upper().split()
    return (
        (seen.error in row.errors or seen.kind in row.errors)
        and row.vendor in ("", seen.vendor)
        and (not row.products or any(product in words for product in row.products))
        and version(seen.driver) >= version(row.driver)
    )


def version(text: str) -> tuple[int, ...]:
    """Return "580.65.06" as numbers. Other text counts as 0, and an empty version is the first."""
    return tuple(int(part) if part.isdecimal() else 0 for part in text.split(".")) if text else ()


def worse(one: str, other: str) -> str:
    """Return the more severe of two verdicts."""
    return max(one, other, key=VERDICTS.index)
