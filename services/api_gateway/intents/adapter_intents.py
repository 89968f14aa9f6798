"""Requests about a model's LoRA adapters, and the rules for them in its deployment.

Pure. The path of an adapter is checked as it is written: no gateway can see the file system of a
replica. Tests: tests/unit/test_gateway_adapter_intents.py.
"""

import re
from typing import Final

import msgspec

from libs.common.adapters import APIS, NONE, AdapterRules, is_below, is_plain
from libs.common.errors import Refused
from libs.common.facts import ModelAdapterSet
from libs.common.state.cluster import Cluster, Model
from services.api_gateway.intents import job_intents
from services.api_gateway.intents.fields import (
    check_known,
    check_one_of,
    check_range,
    convert,
    names_of,
)
from services.api_gateway.openai import names

ADAPTERS_MAX: Final = 256
RESIDENT_MAX: Final = 1_000
PATH_MAX: Final = 1_024
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,127}")
NAME_RULE: Final = (
    "begin with a letter or digit, then use letters, digits and ._@+- (at most 128 characters)"
)


class AdapterBody(msgspec.Struct, frozen=True):
    """The body of a request that adds an adapter."""

    path: str = ""
    user: str = ""


FIELDS: Final = names_of(AdapterBody)
REMOVE_FIELDS: Final = ("user",)


def rules(given: object) -> AdapterRules:
    """Return the rules for a model's adapters from its deployment. Raises Refused."""
    if not isinstance(given, dict):
        raise Refused(
            'adapters: not an object: give for example {"root": "/models/lora", "api": "vllm"}'
        )
    check_known(given, names_of(AdapterRules), "field of adapters")
    found = convert(given, AdapterRules)
    check_one_of("adapters.api", found.api, APIS)
    check_range("adapters.resident_max", found.resident_max, 1, RESIDENT_MAX)
    if not found.root and found.api != NONE:
        raise Refused(
            "adapters.root: missing: give the folder below which all adapters are, for example "
            "/models/lora (muster deploy: --adapters-root DIR)"
        )
    root = found.root.rstrip("/")
    if found.root and not (_is_path(root) and is_plain(root)):
        raise Refused(
            f"adapters.root: {found.root[:64]!r} is not valid: give an absolute path such as "
            "/models/lora, without .. and other than /"
        )
    return AdapterRules(root=root, api=found.api, resident_max=found.resident_max)


def check_present(model: Model, wanted: AdapterRules | None) -> None:
    """Raise Refused if a redeployment with these rules would exclude an adapter of the model."""
    for name, adapter in model.adapters.items():
        if wanted is None or not _fits(adapter.path, wanted):
            raise Refused(
                f"adapters: adapter {name} of {model.name} ({adapter.path or 'without a path'}) "
                f"would not be allowed: remove it first (muster adapter remove {model.name} {name})"
            )


def setting(cluster: Cluster, model: Model, adapter: str, body: object) -> ModelAdapterSet:
    """Return the fact for `PUT /v1/deployments/{name}/adapters/{adapter}`. Raises Refused."""
    values = job_intents.body_fields({} if body is None else body, FIELDS)
    user = job_intents.take_user(values)
    asked = convert(values, AdapterBody)
    allowed = model.spec.adapters
    if allowed is None:
        raise Refused(
            f"adapter: model {model.name} takes no adapters: redeploy it with the folder below "
            f"which they are (muster redeploy {model.name} --adapters-root DIR)"
        )
    if not NAME.fullmatch(adapter):
        raise Refused(f"adapter: {adapter[:64]!r} is not valid: {NAME_RULE}")
    path = asked.path.rstrip("/")
    _check_path(model, path, allowed)
    _check_free(cluster, model, adapter)
    if len({*model.adapters, adapter}) > ADAPTERS_MAX:
        raise Refused(
            f"adapter: model {model.name} has {ADAPTERS_MAX} adapters, the maximum: remove one "
            f"first (muster adapter list {model.name})"
        )
    return ModelAdapterSet(
        name=model.name, adapter=adapter, path=path, user=user, tenant=model.tenant
    )


def removing(model: Model, adapter: str, body: object) -> ModelAdapterSet:
    """Return the fact for `DELETE /v1/deployments/{name}/adapters/{adapter}`. Raises Refused."""
    values = job_intents.body_fields({} if body is None else body, REMOVE_FIELDS)
    user = job_intents.take_user(values)
    return ModelAdapterSet(
        name=model.name, adapter=adapter, removed=True, user=user, tenant=model.tenant
    )


def _check_path(model: Model, path: str, allowed: AdapterRules) -> None:
    if not path and allowed.api != NONE:
        raise Refused(
            f"path: missing: give the adapter's folder below {allowed.root}, as the servers of "
            f"{model.name} see it"
        )
    if path and not (_is_path(path) and _fits(path, allowed)):
        where = f"below {allowed.root}" if allowed.root else "given: leave it out"
        raise Refused(
            f"path: {path[:256]!r} is outside the folder that the deployment of {model.name} "
            f"allows: an adapter's path must be absolute, without .., and {where} (muster redeploy "
            f"{model.name} --adapters-root DIR changes the folder)"
        )


def _fits(path: str, allowed: AdapterRules) -> bool:
    return is_below(path, allowed.root) if path else allowed.api == NONE


def _is_path(path: str) -> bool:
    return path.startswith("/") and len(path) <= PATH_MAX and path.isprintable()


def _check_free(cluster: Cluster, model: Model, adapter: str) -> None:
    """Raise Refused if a model of the tenant has this name already, which would come first."""
    for other in cluster.models.values():
        is_own = other.deployed and other.tenant == model.tenant
        if is_own and adapter in names.names_of(other):
            raise Refused(
                f"adapter: {adapter} is a name of model {other.name} already: choose another one"
            )
