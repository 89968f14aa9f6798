"""The mapping of the provider's groups to tenants and roles, and the claims of an identity token.

Pure. The first rule whose group the user has decides. Tests: tests/unit/test_sign_on_groups.py.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
import yaml

from libs.common.errors import Refused
from libs.common.model import ID_PATTERN
from services.api_gateway.access.roles import ROLES
from services.api_gateway.problems import Denied

RULES_MAX: Final = 1_000
# The group that every user of the provider has.
EVERYONE: Final = "*"
USER: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9@._-]{0,127}", re.ASCII)
EMAIL: Final = "email"


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Users of this group have this role in this tenant."""

    group: str
    tenant: str
    role: str


def parse(text: str) -> dict[str, Rule]:
    """Return the rules of a mapping file by their groups, in order. Raises Refused."""
    try:
        rules = msgspec.convert(yaml.safe_load(text) or [], list[Rule])
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise Refused(
            f"it is not a list of rules ({' '.join(str(error).split())}): write `- {{group: NAME, "
            "tenant: NAME, role: ROLE}` for each group"
        ) from error
    if len(rules) > RULES_MAX:
        raise Refused(f"it has {len(rules)} rules: at most {RULES_MAX} are accepted")
    found: dict[str, Rule] = {}
    for rule in rules:
        if rule.role not in ROLES:
            raise Refused(f"group {rule.group}: role {rule.role!r}: use {', '.join(ROLES)}")
        if not ID_PATTERN.fullmatch(rule.tenant):
            raise Refused(f"group {rule.group}: tenant {rule.tenant!r} is not a tenant's name")
        if not rule.group or rule.group in found:
            raise Refused(f"group {rule.group!r} is empty or has two rules: keep one")
        found[rule.group] = rule
    return found


def admitting(rules: Mapping[str, Rule], groups: Iterable[str]) -> Rule | None:
    """Return the first rule for a user with these groups; None if none admits the user."""
    own = {*groups, EVERYONE}
    return next((rule for group, rule in rules.items() if group in own), None)


def groups_in(claims: Mapping[str, Any], path: str) -> list[str]:
    """Return the groups in a claim. Dots lead into objects: `realm_access.roles`."""
    value: Any = claims.get(path)
    if value is None:
        value = claims
        for name in path.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
    if isinstance(value, str):
        return [value]
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def user_in(claims: Mapping[str, Any], claim: str) -> str:
    """Return the user's name. Raises Denied 403 if the claim names no user."""
    user = claims.get(claim)
    if not isinstance(user, str) or not USER.fullmatch(user):
        raise Denied(
            403,
            f"the claim {claim} of the identity token is {str(user)[:128]!r}, which is no user's "
            "name (letters, digits and @._-): ask an administrator to set MUSTER_OIDC_USER_CLAIM",
        )
    # Some providers let users write any address until it is verified, and some say so in a text.
    is_verified = claims.get("email_verified", True)
    if claim == EMAIL and is_verified is not True and is_verified != "true":
        raise Denied(403, f"the address {user} is not verified: verify it at the identity provider")
    return user
