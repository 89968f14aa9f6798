"""Requests about secrets, and the secrets that a job may use.

Pure. No text here ever quotes a secret's value. Tests: tests/unit/test_secret_intents.py.
"""

import re
from typing import Final

import msgspec

from libs.common.container_spec import REGISTRY_PREFIX
from libs.common.errors import Refused
from libs.common.facts import SecretRemoved, SecretSet
from libs.common.folds.secret_fold import secret_key
from libs.common.messages.secret_messages import RegistryLogin
from libs.common.model import TenantId
from libs.common.state.cluster import Cluster
from services.api_gateway.intents import job_intents
from services.api_gateway.problems import Problem

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")
# The fact about a command that was not found contains PATH, so PATH cannot be a secret.
RECORDED: Final = ("PATH",)
VALUE_BYTES_MAX: Final = 48 << 10
# Secrets of one tenant; each is a key in the bucket.
SECRETS_MAX: Final = 1_000
SECRETS_OF_A_JOB_MAX: Final = 64
SECRET_FIELDS: Final = ("value",)


class SecretShown(msgspec.Struct):
    """A secret without its value."""

    name: str
    version: int
    set_at: str | None
    user: str


def setting(
    body: object, cluster: Cluster, tenant: str, name: str, user: str, value_id: str = ""
) -> tuple[SecretSet, str]:
    """Return the fact for `PUT /v1/secrets/{name}`, and the value, which the fact does not contain.

    Raises Refused.
    """
    if not NAME.fullmatch(name):
        raise Refused(
            f"name: {name[:64]!r} is not valid: begin with a letter or digit, then use letters, "
            "digits and ._- (at most 63 characters)"
        )
    value = job_intents.body_fields(body, SECRET_FIELDS).get("value")
    if not isinstance(value, str) or not value or "\0" in value:
        raise Refused("value: empty, or it contains a NUL byte: give a text without NUL bytes")
    if len(value.encode()) > VALUE_BYTES_MAX:
        raise Refused(
            f"value: the secret has {len(value.encode())} bytes: give at most {VALUE_BYTES_MAX}, "
            "and keep larger data in a file"
        )
    _check_login(name, value)
    known = cluster.secrets.get(secret_key(tenant, name))
    if (
        known is None
        and sum(secret.tenant == tenant for secret in cluster.secrets.values()) >= SECRETS_MAX
    ):
        raise Refused(
            f"name: tenant {tenant} has {SECRETS_MAX} secrets already, which is the maximum: "
            "remove some first"
        )
    fact = SecretSet(
        tenant=TenantId(tenant),
        name=name,
        version=known.version + 1 if known else 1,
        user=user,
        value_id=value_id,
    )
    return fact, value


def _check_login(name: str, value: str) -> None:
    """Check the value of a secret for a registry: agents decode it. Raises Refused."""
    if not name.startswith(REGISTRY_PREFIX):
        return
    try:
        msgspec.json.decode(value, type=RegistryLogin)
    except msgspec.DecodeError:
        raise Refused(
            f"value: secret {name} is for a registry, and its value is not a user name and a "
            'password: give JSON such as {"username": "ann", "password": "..."}, or use '
            "`muster secret set --registry HOST --username NAME`"
        ) from None


def removal(cluster: Cluster, tenant: str, name: str, user: str) -> SecretRemoved:
    """Return the fact for `DELETE /v1/secrets/{name}`. Raises Problem 404."""
    if secret_key(tenant, name) not in cluster.secrets:
        raise Problem(
            404,
            f"tenant {tenant} has no secret {name[:64]!r}: "
            "list them with `muster secret list` (GET /v1/secrets)",
        )
    return SecretRemoved(tenant=TenantId(tenant), name=name, user=user)


def check(cluster: Cluster, tenant: str, secrets: dict[str, str], env: dict[str, str]) -> None:
    """Check the secrets of a job or model, {variable: name of the secret}. Raises Refused."""
    if len(secrets) > SECRETS_OF_A_JOB_MAX:
        raise Refused(f"secrets: {len(secrets)} are too many: give at most {SECRETS_OF_A_JOB_MAX}")
    for variable, name in secrets.items():
        if (
            not VARIABLE.fullmatch(variable)
            or variable.startswith("MUSTER_")
            or variable in RECORDED
        ):
            raise Refused(
                f"secrets: {variable[:64]!r} is not a valid variable: use letters, digits and _, "
                "and neither PATH nor a name that begins with MUSTER_"
            )
        if variable in env:
            raise Refused(
                f"secrets: the variable {variable} is given in env too: give it in one of them"
            )
        if secret_key(tenant, name) not in cluster.secrets:
            raise Refused(
                f"secrets: tenant {tenant} has no secret {name[:64]!r}: create it with `muster "
                f"secret set {name[:64]}`"
            )
