"""Requests about models: deploy, redeploy, scale, undeploy.

Pure. The bounds of `job_intents.py` hold for replicas too. Whether a name is free is answered from
the fold of this gateway; if two gateways deploy one name at once, the second one redeploys it. Held
by tests/unit/test_gateway_model_intents.py.
"""

import re
from typing import Any, Final

import msgspec

from libs.common.errors import Refused
from libs.common.facts import ModelDeployed, ModelScaled, ModelUndeployed, check_fact_size
from libs.common.folds.former_fold import is_over
from libs.common.model import SPREADS, TenantId
from libs.common.model_spec import ModelSpec
from libs.common.scaling_targets import ScalingTargets
from libs.common.state import model_view
from libs.common.state.cluster import Cluster, Model, Tenant
from libs.common.state.former_models import FORMER_NS
from libs.common.state.tenant import MODELS_DEFAULT
from services.api_gateway.intents import (
    adapter_intents,
    batching_fields,
    container_fields,
    job_intents,
    model_names,
    placement_fields,
    pool_fields,
)
from services.api_gateway.intents.fields import check_range, convert, names_of
from services.api_gateway.times import duration_s

# The name is part of its replicas' ids, and so of paths and keys.
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
REPLICAS_MAX: Final = 1_000
PATH_MAX: Final = 1_024
PROBE_S_MAX: Final = 3_600

SPEC_FIELDS: Final = (
    *names_of(ModelSpec),
    "fraction",
    "startup_timeout",
    "user",
    *placement_fields.ALIASES,
)
DEPLOY_FIELDS: Final = ("name", *SPEC_FIELDS)
SCALE_FIELDS: Final = ("replicas", "user")
RANGES: Final = (
    ("replicas", 0, REPLICAS_MAX),
    ("startup_timeout_s", 1, job_intents.DAY_S),
    ("health_interval_s", 1, PROBE_S_MAX),
    ("health_timeout_s", 0, PROBE_S_MAX),
    ("health_failures", 1, 1_000),
    *(each for each in job_intents.RANGES if each[0] in model_view.SHARED_FIELDS),
)
# Groups of fields that exclude each other: a redeployment with one of them drops the others.
EITHER: Final = (
    ("gpu_share", "gpu_memory_bytes", "mig_profile"),
    ("workdir", "upload"),
    ("replicas", "scaling"),
)
SCALING_RANGES: Final = (
    ("replicas_min", 0, REPLICAS_MAX),
    ("replicas_max", 1, REPLICAS_MAX),
    ("first_token_ms", 0, 3_600_000),
    ("per_token_ms", 0, 3_600_000),
    ("concurrency", 0, 100_000),
    ("idle_s", 1, job_intents.DAY_S),
)


def deployment(body: object, known: Model | None, tenant: TenantId) -> ModelDeployed:
    """Return the fact for `POST /v1/deployments`. Raises Refused."""
    values = job_intents.body_fields(body, DEPLOY_FIELDS)
    name = values.pop("name", "")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise Refused(
            f"name: {str(name)[:64]!r} is not valid: begin with a letter or digit, then use "
            "letters, digits and ._- (at most 63 characters); a name such as Qwen/Qwen2.5-7B goes "
            "into served_name"
        )
    if known is not None and known.deployed:
        raise Refused(
            f"name: model {name} is deployed already: redeploy it (POST "
            f"/v1/deployments/{name}/redeploy) or undeploy it first"
        )
    container_fields.take(values)
    if container_fields.may_be_empty(values):
        values.setdefault("command", ())
    if "command" not in values:
        raise Refused(
            'command: missing: give a list of words, for example ["vllm", "serve", "MODEL", '
            '"--port", "{port}"]'
        )
    pool_fields.refuse_zero(values)
    user = job_intents.take_user(values)
    fields = _read(values)
    if (targets := fields.get("scaling")) is not None:
        fields.setdefault("replicas", max(1, targets.replicas_min))
    return _checked(ModelDeployed(name=name, spec=_spec(fields), tenant=tenant, user=user))


def check_count(cluster: Cluster, tenant: Tenant, name: str, now_ns: int) -> None:
    """Raise Refused if the tenant has as many deployed models as it may have.

    An undeployed model stays in the state. So a new name is also refused if the tenant has too many
    that were undeployed within an hour.
    """
    own = [model for model in cluster.models.values() if model.tenant == tenant.tenant]
    deployed = sum(model.deployed for model in own)
    if deployed >= tenant.models_max:
        raise Refused(
            f"name: model {name} was not deployed: tenant {tenant.tenant} may have "
            f"{tenant.models_max} deployed models and has {deployed}: undeploy one, or ask an "
            f"administrator to run `muster tenant set {tenant.tenant} --models N`"
        )
    former = sum(
        not model.deployed and not is_over(cluster, model, now_ns, FORMER_NS) for model in own
    )
    most = max(MODELS_DEFAULT, tenant.models_max)
    is_known = name in cluster.models or name in cluster.former_models
    if not is_known and former >= most:
        raise Refused(
            f"name: model {name} was not deployed: tenant {tenant.tenant} has {former} undeployed "
            f"models that still count, and with {most} or more no new name is allowed: "
            "deploy it under the name of one of them, run `muster model drop` for those that nodes "
            "keep data of, or wait: the others count for an hour"
        )


def redeployment(body: object, known: Model) -> ModelDeployed:
    """Return the fact for `POST .../redeploy`; fields that are left out stay. Raises Refused."""
    given = job_intents.body_fields({} if body is None else body, SPEC_FIELDS)
    user = job_intents.take_user(given)
    container_fields.take(given, known.spec.container)
    changes = _read(given)
    if (targets := changes.get("scaling")) is not None:
        present = min(targets.replicas_max, max(targets.replicas_min, known.wanted))
        changes.setdefault("replicas", present)
    replaced = {name for names in EITHER if not changes.keys().isdisjoint(names) for name in names}
    current = {**msgspec.structs.asdict(known.spec), "replicas": known.wanted}
    values = {name: value for name, value in current.items() if name not in replaced} | changes
    spec = _spec(values)
    adapter_intents.check_present(known, spec.adapters)
    return _checked(
        ModelDeployed(name=known.name, spec=spec, tenant=known.tenant, user=user or known.user)
    )


def scaling(body: object, known: Model) -> ModelScaled:
    """Return the fact for `PATCH /v1/deployments/{name}`. Raises Refused."""
    values = job_intents.body_fields(body, SCALE_FIELDS)
    user, replicas = job_intents.take_user(values), values.get("replicas")
    if (targets := known.spec.scaling) is not None:
        raise Refused(
            f"replicas: the scheduler keeps between {targets.replicas_min} and "
            f"{targets.replicas_max} replicas of {known.name} by its requests: redeploy it with a "
            "fixed number (muster redeploy --replicas N), or with another range"
        )
    if replicas is None:
        raise Refused(f"replicas: missing: give a whole number, 0 to {REPLICAS_MAX}")
    if not isinstance(replicas, int) or isinstance(replicas, bool):
        raise Refused(
            f"replicas: {str(replicas)[:64]!r} is not a whole number: give 0 to {REPLICAS_MAX}"
        )
    check_range("replicas", replicas, 0, REPLICAS_MAX)
    return ModelScaled(name=known.name, replicas=replicas, user=user, tenant=known.tenant)


def undeployment(body: object, known: Model) -> ModelUndeployed:
    """Return the fact for `DELETE /v1/deployments/{name}`. Raises Refused."""
    return ModelUndeployed(
        name=known.name,
        user=job_intents.take_user(
            job_intents.body_fields({} if body is None else body, ("user",))
        ),
        tenant=known.tenant,
    )


def _read(values: dict[str, Any]) -> dict[str, Any]:
    """Return the request's fields as fields of ModelSpec, with durations and sizes as numbers."""
    for name in (
        "startup_timeout_s",
        "start_s",
        "grace_s",
        "health_interval_s",
        "health_timeout_s",
    ):
        if name in values:
            values[name] = duration_s(values[name], name)
    job_intents.take_alias(values, "startup_timeout", "startup_timeout_s", duration_s)
    job_intents.take_alias(values, "fraction", "gpu_share", job_intents.share_hundredths)
    placement_fields.take_aliases(values)
    if values.get("scaling") is not None:
        values["scaling"] = _scaling(values["scaling"])
    if values.get("batching") is not None:
        values["batching"] = batching_fields.batching(values["batching"])
    if values.get("adapters") is not None:
        values["adapters"] = adapter_intents.rules(values["adapters"])
    return values


def _scaling(given: object) -> ScalingTargets:
    """Return the bounds and targets of a model that scales. Raises Refused."""
    if not isinstance(given, dict):
        raise Refused(
            'scaling: not an object: give for example {"replicas_min": 0, "replicas_max": 8, '
            '"first_token_ms": 500}'
        )
    values = job_intents.body_fields(given, names_of(ScalingTargets))
    if "replicas_max" not in values:
        raise Refused("scaling.replicas_max: missing: give a whole number of at least 1")
    values["idle_s"] = duration_s(values.get("idle_s", 300), "scaling.idle_s")
    found = convert(values, ScalingTargets)
    for name, low, high in SCALING_RANGES:
        check_range(f"scaling.{name}", getattr(found, name), low, high)
    if found.replicas_min > found.replicas_max:
        raise Refused(
            f"scaling.replicas_min: {found.replicas_min} is more than replicas_max "
            f"{found.replicas_max}: give the smaller number first"
        )
    if not (found.first_token_ms or found.per_token_ms or found.concurrency):
        raise Refused(
            "scaling: no target: give first_token_ms, per_token_ms or concurrency (muster deploy: "
            "--target-ttft, --target-tpot, --target-concurrency)"
        )
    return found


def _spec(values: dict[str, Any]) -> ModelSpec:
    spec = convert(values, ModelSpec)
    if (targets := spec.scaling) is not None and not (
        targets.replicas_min <= spec.replicas <= targets.replicas_max
    ):
        raise Refused(
            f"replicas: {spec.replicas} is the number to begin with, and outside "
            f"{targets.replicas_min} to {targets.replicas_max}: leave it out"
        )
    for name, low, high in RANGES:
        check_range(name, getattr(spec, name), low, high)
    job_intents.check_spec(model_view.replica_spec(spec, "", 0))
    _check_health_path(spec.health_path)
    if spec.served_name:
        model_names.check_served("served_name", spec.served_name)
    if spec.spread not in SPREADS:
        raise Refused(
            f"spread: {spec.spread[:64]!r} is not known: give one of {', '.join(SPREADS)}"
        )
    return spec


def _check_health_path(path: str) -> None:
    """Raise Refused for a path that cannot stand in a request line as it is."""
    if (
        not path.startswith("/")
        or len(path) > PATH_MAX
        or not path.isascii()
        or not path.isprintable()
        or " " in path
    ):
        raise Refused(
            f"health_path: {path[:64]!r} is not valid: give a path such as /health, without spaces"
        )


def _checked(fact: ModelDeployed) -> ModelDeployed:
    check_fact_size(fact)
    return fact
