"""Assigns one Unix user id per tenant on this machine.

Jobs whose submitter MUSTER_JOB_USERS does not name run under it. The table is one file per machine,
because several agents may share it. An id is written there before its first use. It never goes to
another tenant, because files of the first one may remain. Tests: tests/unit/test_tenant_numbers.py.
"""

import fcntl
import pwd
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec

from libs.common.errors import Refused
from services.node_agent.machine import synced_file

# Above the users of machines and of systemd, below the ranges of containers (SUB_UID_MIN of
# shadow).
RANGE: Final = "70000-99999"
TABLE: Final = "/var/lib/muster/tenant-uids.json"
UID_MAP: Final = "/proc/self/uid_map"


class TenantNumbers(msgspec.Struct, frozen=True):
    """The user ids of tenants, kept in one table per machine.

    `cluster` is part of a tenant's name in the table, because agents of two clusters may share a
    machine.
    """

    cluster: str = ""
    span: str = RANGE
    table: str = TABLE

    def number(self, tenant: str) -> int:
        """Return the tenant's user id, which is also its group id.

        It is the same on every machine where no other tenant has it already. Raises Refused.
        """
        first, last = bounds(self.span)
        path = Path(self.table)
        try:
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            with open(path.with_suffix(".lock"), "a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                return _number(path, f"{self.cluster}/{tenant}", first, last)
        except (OSError, msgspec.DecodeError) as error:
            raise Refused(
                f"tenant {tenant} cannot get a user id: {path} cannot be used ({error}): "
                "set MUSTER_TENANT_UID_TABLE or MUSTER_JOB_USERS on this node"
            ) from error


def bounds(span: str) -> tuple[int, int]:
    """Return the first and last id of MUSTER_TENANT_UIDS. Raises Refused."""
    first, _, last = span.partition("-")
    if not (first.isdecimal() and last.isdecimal() and 0 < int(first) <= int(last) < (1 << 32) - 1):
        raise Refused(
            f"MUSTER_TENANT_UIDS={span!r} must be FIRST-LAST, two user ids above 0 such as {RANGE}"
        )
    if not _is_mapped(int(first), int(last)):
        raise Refused(
            f"MUSTER_TENANT_UIDS={span!r} does not exist in this container ({UID_MAP}): give "
            "a range that does"
        )
    return int(first), int(last)


def _is_mapped(first: int, last: int) -> bool:
    """Return whether this process's user namespace has all of these ids."""
    try:
        lines = [list(map(int, line.split())) for line in Path(UID_MAP).read_text().splitlines()]
    except OSError:
        return True
    return any(inside <= first and last < inside + count for inside, _, count in lines)


def _number(path: Path, name: str, first: int, last: int) -> int:
    known = msgspec.json.decode(path.read_bytes(), type=dict[str, int]) if path.exists() else {}
    if first <= known.get(name, 0) <= last:
        return known[name]
    taken, size = set(known.values()), last - first + 1
    begin = int.from_bytes(sha256(name.encode()).digest()[:8], "big") % size
    for step in range(size):
        found = first + (begin + step) % size
        if found not in taken and not _is_a_user(found):
            # The tenant's id in an earlier range stays taken, under a name that no tenant has.
            moved = {f"//{known[name]}": known[name]} if name in known else {}
            synced_file.replace(path, msgspec.json.encode({**known, **moved, name: found}))
            return found
    raise Refused(
        f"no user id is left for {name} in {first}-{last}: widen MUSTER_TENANT_UIDS on this node"
    )


def _is_a_user(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True
