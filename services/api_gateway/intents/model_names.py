"""Requests about a model's aliases, and about the tenants that it is shared with.

Pure. Whether a name is in use is answered from the fold of this gateway; if two gateways give one
alias to two models at once, the first one in the log has it (`openai/names.py`). Tests:
tests/unit/test_gateway_model_names.py.
"""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from libs.common.errors import Refused
from libs.common.facts import ModelAliasSet, ModelShareSet
from libs.common.model import ID_PATTERN
from libs.common.state.cluster import Cluster, Model
from services.api_gateway.intents import identity_intents, job_intents
from services.api_gateway.intents.fields import convert, names_of
from services.api_gateway.openai import names
from services.api_gateway.openai.names import EVERYONE

ALIASES_MAX: Final = 32
GUESTS_MAX: Final = 256
SERVED_MAX: Final = 128
SERVED: Final = re.compile(r"/?[A-Za-z0-9][\w.:@+-]*(/[A-Za-z0-9][\w.:@+-]*)*", re.ASCII)
SERVED_RULE: Final = (
    "use letters, digits and ._:@+-/ (at most 128 characters), with a letter or digit at the "
    "beginning of each part, for example Qwen/Qwen2.5-7B"
)


class NamesBody(msgspec.Struct, frozen=True):
    """The body of a request that adds aliases or guests, and removes others."""

    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    user: str = ""


FIELDS: Final = names_of(NamesBody)


def check_served(field: str, name: str) -> None:
    """Raise Refused unless clients can use this name in a request and in a path."""
    if len(name) > SERVED_MAX or not SERVED.fullmatch(name):
        raise Refused(f"{field}: {name[:64]!r} is not valid: {SERVED_RULE}")


def aliases(cluster: Cluster, model: Model, body: object) -> list[ModelAliasSet]:
    """Return the facts for `PATCH /v1/deployments/{name}/aliases`. Raises Refused."""
    asked = _read(body)
    for alias in asked.add:
        check_served("add", alias)
        _check_free(cluster, model, alias)
    _check_present("alias", model, model.aliases, asked.remove)
    _check_count("aliases", model.aliases, asked, ALIASES_MAX)
    return [
        ModelAliasSet(
            name=model.name, alias=alias, removed=removed, user=asked.user, tenant=model.tenant
        )
        for alias, removed in _changes(model.aliases, asked)
    ]


def guests(cluster: Cluster, model: Model, body: object, sees_all: bool) -> list[ModelShareSet]:
    """Return the facts for `PATCH /v1/deployments/{name}/guests`. Raises Refused.

    Only a principal that may see all tenants learns whether one exists.
    """
    asked = _read(body)
    for guest in asked.add:
        if guest != EVERYONE and not ID_PATTERN.fullmatch(guest):
            raise Refused(
                f"add: {guest[:64]!r} is not valid: give the name of a tenant (small letters, "
                "digits and -), or * for all tenants"
            )
        if guest == model.tenant:
            raise Refused(f"add: model {model.name} belongs to tenant {guest}: leave it out")
        is_known = guest == EVERYONE or identity_intents.known_tenant(cluster, guest) is not None
        if sees_all and not is_known:
            raise Refused(f"add: tenant {guest} does not exist: `muster tenant list` lists them")
    _check_present("tenant", model, model.guests, asked.remove)
    _check_count("tenants", model.guests, asked, GUESTS_MAX)
    return [
        ModelShareSet(
            name=model.name, guest=guest, removed=removed, user=asked.user, tenant=model.tenant
        )
        for guest, removed in _changes(model.guests, asked)
    ]


def _read(body: object) -> NamesBody:
    values = job_intents.body_fields(body, FIELDS)
    user = job_intents.take_user(values)
    asked = convert({**values, "user": user}, NamesBody)
    if not asked.add and not asked.remove:
        raise Refused("add: missing: give a list of names in add or in remove")
    return asked


def _changes(present: Mapping[str, int], asked: NamesBody) -> list[tuple[str, bool]]:
    """Return what changes: each name, and whether it is removed."""
    added = [(name, False) for name in dict.fromkeys(asked.add) if name not in present]
    return [(name, True) for name in dict.fromkeys(asked.remove)] + added


def _check_free(cluster: Cluster, model: Model, alias: str) -> None:
    """Raise Refused if another model of the tenant has this name already."""
    for other in cluster.models.values():
        is_other = other.deployed and other.tenant == model.tenant and other.name != model.name
        if is_other and alias in names.names_of(other):
            raise Refused(
                f"add: {alias} is a name of model {other.name} already: choose another one, or "
                f"take it from there first (muster model unalias {other.name} {alias})"
            )
        if other.deployed and other.tenant == model.tenant and alias in other.adapters:
            raise Refused(
                f"add: {alias} is an adapter of model {other.name}: choose another one, or remove "
                f"that first (muster adapter remove {other.name} {alias})"
            )


def _check_present(
    what: str, model: Model, present: Mapping[str, int], asked: tuple[str, ...]
) -> None:
    for name in asked:
        if name not in present:
            known = ", ".join(present) or "none"
            raise Refused(
                f"remove: model {model.name} does not have the {what} {name[:64]!r}: it has {known}"
            )


def _check_count(what: str, present: Mapping[str, int], asked: NamesBody, most: int) -> None:
    count = len({*present, *asked.add} - {*asked.remove})
    if count > most:
        raise Refused(f"add: the model would have {count} {what}: at most {most} are accepted")
