"""Chooses the Unix user of a job.

An agent that is root uses one Unix user per tenant (`tenant_numbers.py`), unless MUSTER_JOB_USERS
maps the submitter to a user of this machine: "team/ann=ann,bob=u1002,lab/*=lab,*=jobs". The most
specific entry wins: TENANT/USER, then USER, then TENANT/*, then *. `self` is the agent's own user.
An agent that is not root has only its own user. It takes jobs of the tenant `default` and of
submitters that are mapped to `self`. Tests: tests/unit/test_accounts.py,
tests/attack/test_tenant_users.py.
"""

import contextlib
import grp
import os
import pwd
from collections.abc import Mapping
from typing import Final, NamedTuple

from libs.common.errors import Refused
from services.node_agent.directories.tenant_numbers import TenantNumbers, bounds

ALL_OTHERS: Final = "*"
SELF: Final = "self"
# The only tenant that may share the user of an agent that is not root.
OWN_TENANT: Final = "default"
# Groups that own the device nodes of GPUs. The device filter decides which GPUs a job can open.
DEVICE_GROUPS: Final = ("video", "render")


class Account(NamedTuple):
    """A user of this machine; `groups` are the supplementary ones.

    If `home` is empty, the job's home is a folder in the attempt's directory.
    """

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
        """Return the ids in the form of `supervisor.order.Order`: user, group, further groups."""
        return [self.uid, self.gid, *self.groups]


def parsed(text: str) -> dict[str, str]:
    """Parse MUSTER_JOB_USERS into users by submitter. Raises Refused."""
    pairs = [part.strip().partition("=") for part in text.split(",") if part.strip()]
    for who, _, name in pairs:
        if not who or not name:
            raise Refused(
                f"MUSTER_JOB_USERS={text!r} must be USER=UNIXUSER pairs with commas between "
                "them, such as ann=ann,*=jobs"
            )
    return {who.strip(): name.strip() for who, _, name in pairs}


def name_of(users: Mapping[str, str], tenant: str, user: str) -> str:
    """Return the Unix user that MUSTER_JOB_USERS names for a submitter; empty if it names none."""
    return next(
        (
            users[who]
            for who in (f"{tenant}/{user}", user, f"{tenant}/{ALL_OTHERS}", ALL_OTHERS)
            if who in users
        ),
        "",
    )


def shares_agent(users: Mapping[str, str], tenant: str, user: str) -> bool:
    """Return whether the job runs as the agent's own user.

    Raises Refused if an agent that is not root may not run it.
    """
    name = name_of(users, tenant, user)
    if name == SELF:
        return True
    if os.geteuid() == 0:
        return False
    if name == _own_name() or (not name and tenant == OWN_TENANT):
        return True
    if name:
        raise Refused(
            f"the job cannot run as user {name} (MUSTER_JOB_USERS): the agent is not root, so it "
            "cannot change to another user. Run the agent as root, or change MUSTER_JOB_USERS on "
            "this node"
        )
    raise Refused(
        f"this node takes no jobs of tenant {tenant}: its agent is not root, so all jobs "
        f"share its user {_own_name()}. Run the agent "
        f"as root, or set MUSTER_JOB_USERS={tenant}/*=self on this node"
    )


def account_of(users: Mapping[str, str], numbers: TenantNumbers, tenant: str, user: str) -> Account:
    """Return the user of a job that does not run as the agent's user.

    Reads files and the machine's user database. Raises Refused.
    """
    name = name_of(users, tenant, user)
    return account(name) if name else _tenant_account(numbers, tenant)


def ids_of_jobs(users: Mapping[str, str], numbers: TenantNumbers) -> list[tuple[int, int]]:
    """Return the ids, as ranges, of the users and groups of all jobs. Reads the user database."""
    found: list[tuple[int, int]] = []
    with contextlib.suppress(Refused):  # no tenant can have an id
        found.append(bounds(numbers.span))
    for name in sorted({*users.values()} - {SELF}):
        with contextlib.suppress(Refused):  # this machine has no such user
            found += [(number, number) for number in account(name).ids]
    return found


def _tenant_account(numbers: TenantNumbers, tenant: str) -> Account:
    uid = numbers.number(tenant)
    groups = tuple(each.gr_gid for each in grp.getgrall() if each.gr_name in DEVICE_GROUPS)
    return Account(name=tenant, uid=uid, gid=uid, groups=groups, home="", shell="/bin/sh")  # nosec B604


def account(name: str) -> Account:
    """Return a user from the machine's user database, which may answer slowly.

    Raises Refused if the user does not exist.
    """
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        raise Refused(
            f"the job cannot run as user {name} (MUSTER_JOB_USERS): this machine has no such user. "
            "Create it, or change MUSTER_JOB_USERS on this node"
        ) from None
    groups = tuple(group for group in os.getgrouplist(name, found.pw_gid) if group != found.pw_gid)
    return Account(  # nosec B604
        name,
        uid=found.pw_uid,
        gid=found.pw_gid,
        groups=groups,
        home=found.pw_dir,
        shell=found.pw_shell or "/bin/sh",
    )


def lost(users: Mapping[str, str], numbers: TenantNumbers) -> str:
    """Return why Unix users do not isolate the jobs of this node; empty if they do.

    Raises Refused for an invalid range.
    """
    if os.geteuid() != 0:
        who = own_tenants(users)
        taken = (
            f"it takes jobs of {', '.join(who)} only"
            if who is not None
            else "it takes jobs of all tenants"
        )
        return (
            f"the agent is not root: every job runs as its user {_own_name()} and can read its "
            f"key; {taken}"
        )
    if any(name == SELF or _is_root(name) for name in users.values()):
        return (
            "MUSTER_JOB_USERS lets jobs run as root, which can read the agent's key and all "
            "other jobs"
        )
    try:
        bounds(numbers.span)
    except Refused as error:
        return str(error)
    return ""


def own_tenants(users: Mapping[str, str]) -> list[str] | None:
    """Return the tenants whose jobs this agent takes; None for all, as root does."""
    if os.geteuid() == 0 or any(
        name in (SELF, _own_name()) for who, name in users.items() if "/" not in who
    ):
        return None
    named = [who.partition("/")[0] for who, name in users.items() if name in (SELF, _own_name())]
    default = [] if name_of(users, OWN_TENANT, "") else [OWN_TENANT]
    return sorted({*default, *named})


def _own_name() -> str:
    """Return the name of the agent's user; its number where it has no name, as in containers."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _is_root(name: str) -> bool:
    """Return whether this user has the id 0. A user that does not exist cannot run jobs."""
    try:
        return pwd.getpwnam(name).pw_uid == 0
    except KeyError:
        return False
