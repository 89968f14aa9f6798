"""The mapping of groups: the first rule that fits, a file that says what is wrong in it, and names
of users that can be no one else's.
"""

from typing import Any

import pytest

from libs.common.errors import Refused
from services.api_gateway.problems import Denied
from services.api_gateway.sign_on.groups import (
    RULES_MAX,
    Rule,
    admitting,
    groups_in,
    parse,
    user_in,
)

TEXT = """
- {group: admins, tenant: default, role: admin}
- group: "cn=physics,ou=lab"
  tenant: physics
  role: member
- {group: "*", tenant: guests, role: viewer}
"""
ADMINS = Rule("admins", "default", "admin")
PHYSICS = Rule("cn=physics,ou=lab", "physics", "member")
GUESTS = Rule("*", "guests", "viewer")


def test_rules_are_read_in_order() -> None:
    assert list(parse(TEXT).values()) == [ADMINS, PHYSICS, GUESTS]
    assert parse("") == {} == parse("[]")


@pytest.mark.parametrize(
    ("groups", "rule"),
    [
        (["cn=physics,ou=lab", "admins"], ADMINS),
        (["staff", "cn=physics,ou=lab"], PHYSICS),
        ([], GUESTS),
    ],
)
def test_the_first_rule_that_fits_decides(groups: list[str], rule: Rule) -> None:
    assert admitting(parse(TEXT), groups) == rule


def test_a_user_without_an_admitted_group_has_no_rule() -> None:
    assert admitting({"admins": ADMINS}, ["staff"]) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{group: a}", "is not a list of rules"),
        ("- {group: a, tenant: b}", "is not a list of rules"),
        ("- {group: a, tenant: b, role: admin, more: 1}", "is not a list of rules"),
        ("- [", "is not a list of rules"),
        ("- {group: a, tenant: b, role: root}", "group a: role 'root': use viewer, member"),
        ("- {group: a, tenant: B, role: admin}", "tenant 'B' is not a tenant's name"),
        ("- {group: '', tenant: b, role: admin}", "group '' is empty or has two rules"),
        ("- {group: a, tenant: b, role: admin}\n" * 2, "group 'a' is empty or has two rules"),
        ("- {group: a, tenant: b, role: admin}\n" * (RULES_MAX + 1), "at most 1000"),
    ],
)
def test_a_file_that_is_not_valid_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        parse(text)


@pytest.mark.parametrize(
    ("claims", "path", "groups"),
    [
        ({"groups": ["a", 5, "b"]}, "groups", ["a", "b"]),
        ({"groups": "a"}, "groups", ["a"]),
        ({"groups": {"a": 1}}, "groups", []),
        ({}, "groups", []),
        ({"realm": {"roles": ["a"]}}, "realm.roles", ["a"]),
        ({"https://lab.example.org/groups": ["a"]}, "https://lab.example.org/groups", ["a"]),
        ({"realm": "x"}, "realm.roles", []),
    ],
)
def test_groups_are_texts_in_a_claim(claims: dict[str, Any], path: str, groups: list[str]) -> None:
    assert groups_in(claims, path) == groups


def test_a_user_is_the_text_of_a_claim() -> None:
    assert user_in({"email": "ada@example.org"}, "email") == "ada@example.org"
    assert user_in({"sub": "u1", "email_verified": False}, "sub") == "u1"


@pytest.mark.parametrize(
    "claims",
    [
        {},
        {"email": 5},
        {"email": ""},
        {"email": "ada+gpu@example.org"},
        {"email": "ada\n"},
        {"email": "\u0430da"},
        {"email": "a" * 129},
        {"email": "ada@example.org", "email_verified": False},
        {"email": "ada@example.org", "email_verified": "false"},
    ],
    ids=str,
)
def test_a_claim_that_names_no_user_is_denied(claims: dict[str, Any]) -> None:
    with pytest.raises(Denied):
        user_in(claims, "email")
