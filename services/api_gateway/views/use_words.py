"""One-line summaries of facts about prices, idle devices and diagnoses. Pure."""

from collections.abc import Callable
from typing import Any, Final

from libs.common import facts as f
from services.api_gateway.times import rfc3339
from services.api_gateway.views.diagnosis_words import DIAGNOSIS_WORDS
from services.api_gateway.views.usage import money
from services.api_gateway.views.user_words import user_named


def _price(fact: f.PriceSet) -> str:
    what = (
        "removed"
        if fact.removed
        else f"{money(fact.micros_per_hour)} {fact.currency} for one GPU and hour"
    )
    return f"price of {fact.name}: {what}, by {user_named(fact.user)}"


def _policy(fact: f.IdlePolicySet) -> str:
    after = f" after {fact.idle_s} s" if fact.action != "off" else ""
    user = user_named(fact.user)
    return f"jobs of {fact.tenant} with idle GPUs: {fact.action}{after}, by {user}"


def _idle(fact: f.JobIdleSeen) -> str:
    where = f"the GPUs of attempt {fact.attempt} on {fact.node_id}"
    if not fact.idle_ms:
        return f"{where} compute again"
    return f"{where} have been idle for {fact.idle_ms // 1_000} s"


def _warned(fact: f.JobIdleWarned) -> str:
    follows = f": {fact.action} at {rfc3339(fact.ends_ns)}" if fact.ends_ns else ""
    return f"warned that all GPUs have been idle for {fact.idle_s} s{follows}"


USE_WORDS: Final[dict[type, Callable[[Any], str]]] = {
    f.PriceSet: _price,
    f.IdlePolicySet: _policy,
    f.JobIdleSeen: _idle,
    f.JobIdleWarned: _warned,
    **DIAGNOSIS_WORDS,
}
