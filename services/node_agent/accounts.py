"""Which Unix user a job runs as: never the agent's own where that is root, unless the operator says so.

MUSTER_JOB_USERS maps those who submit to users of this machine: "team/ann=ann,bob=u1002,*=jobs". A tenant's user goes before a user,
that before all others. Who is not named runs as `nobody`; `self` is the agent's own user. Tests: tests/unit/test_accounts.py.
"""

import os
import pwd
from collections.abc import Mapping
from typing import Final, NamedTuple

from libs.common.errors import Refused

ALL_OTHERS: Final = "*"
UNNAMED: Final = "nobody"
SELF: Final = "self"


class Account(NamedTuple):
    """A user of this machine; `groups` are the supplementary ones."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str
    shell: str

    @property
    def environment(self) -> dict[str, str]:
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name, "SHELL": self.shell}

    @property
    def ids(self) -> list[int]:
        """As `supervision.order.Order` has them."""
        return [self.uid, self.gid, *self.groups]


def parsed(text: str) -> dict[str, str]:
    """MUSTER_JOB_USERS. Raises Refused."""
    pairs = [part.strip().partition("=") for part in text.split(",") if part.strip()]
    for who, _, name in pairs:
        if not who or not name:
            raise Refused(f"MUSTER_JOB_USERS={text!r} must be USER=UNIXUSER pairs with commas between them, such as ann=ann,*=jobs")
    return {who.strip(): name.strip() for who, _, name in pairs}


def name_of(users: Mapping[str, str], tenant: str, user: str) -> str:
    """Empty: the agent's own user, which is the only one that it can give unless it is root."""
    if os.geteuid() != 0:
        return ""
    name = next((users[who] for who in (f"{tenant}/{user}", user, ALL_OTHERS) if who in users), UNNAMED)
    return "" if name == SELF else name


def account(name: str) -> Account:
    """Asks the machine's directory of users, which may take its time. Raises Refused when it does not know the user."""
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        raise Refused(f"the job is to run as {name} (MUSTER_JOB_USERS), which is no user of this machine") from None
    groups = tuple(group for group in os.getgrouplist(name, found.pw_gid) if group != found.pw_gid)
    return Account(name, found.pw_uid, found.pw_gid, groups, found.pw_dir, found.pw_shell or "/bin/sh")


def lost(users: Mapping[str, str]) -> str:
    """Why jobs here are not kept apart by their users; empty when they are."""
    if os.geteuid() != 0:
        return f"the agent is not root: every job runs as its user {_own_name()}"
    if any(name == SELF or _is_root(name) for name in users.values()):
        return "MUSTER_JOB_USERS lets jobs run as root"
    return ""


def _own_name() -> str:
    """Its number, where the machine has no name for it: containers run as any number."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _is_root(name: str) -> bool:
    """Under whatever name. Who is no user of this machine runs nothing."""
    try:
        return pwd.getpwnam(name).pw_uid == 0
    except KeyError:
        return False
