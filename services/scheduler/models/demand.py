"""Reads the demand for models from the gateways' reports, and applies the autoscaling law to it.

One `Autoscaling` per model that has `scaling`, with a memory of minutes; a new leader begins with
none. The law is applied once a second, and only while a gateway has reported lately. Pure.
Tests: tests/unit/test_scheduler_demand.py.
"""

from collections.abc import Iterator
from typing import Final

from libs.common.facts import ModelAutoscaled
from libs.common.messages.outstanding import ModelDemand, Outstanding
from libs.common.quantities import counted
from libs.common.scaling_targets import ScalingTargets
from libs.common.state import model_view
from libs.common.state.cluster import Cluster, Model
from services.scheduler.models import autoscaling
from services.scheduler.models.autoscaling import SECOND_NS, Autoscaling, Scaling, Signals, Targets

EVERY_NS: Final = SECOND_NS
# A gateway reports every second; an older report says nothing about now.
FRESH_NS: Final = 5 * SECOND_NS
MS_NS: Final = 1_000_000
US_NS: Final = 1_000
HELD: Final = {
    "": "",
    autoscaling.AT_MOST: "; held by the greatest number allowed",
    autoscaling.AT_LEAST: "; held by the least number allowed",
    autoscaling.GROWS_SLOWLY: "; held by the bound on growth in a minute",
    autoscaling.SHRINKS_SLOWLY: "; held, as at most one ends in two minutes",
    autoscaling.NOT_YET: "; held until the need has lasted longer",
}


class Demand:
    """The last report of each gateway, and the law of each model."""

    def __init__(self) -> None:
        self.reports: dict[str, tuple[int, dict[str, ModelDemand]]] = {}
        self.laws: dict[str, tuple[ScalingTargets, Autoscaling]] = {}
        self.asked_ns: int | None = None

    def hear(self, instance: str, report: Outstanding | None, now_ns: int) -> None:
        """Note a gateway's report; None: one that could not be read."""
        if report is not None:
            self.reports[instance] = now_ns, report.demand

    def wanted(self, cluster: Cluster, now_ns: int) -> tuple[ModelAutoscaled, ...]:
        """Return the models whose number of replicas should change; none within a second."""
        if self.asked_ns is not None and now_ns - self.asked_ns < EVERY_NS:
            return ()
        self.asked_ns = now_ns
        self.reports = {
            instance: report
            for instance, report in self.reports.items()
            if now_ns - report[0] < FRESH_NS
        }
        models = [each for each in cluster.models.values() if each.deployed and each.spec.scaling]
        self.laws = {each.name: self._law(each) for each in models}
        return tuple(self._changes(cluster, models, now_ns)) if self.reports else ()

    def _law(self, model: Model) -> tuple[ScalingTargets, Autoscaling]:
        targets = model.spec.scaling
        assert targets is not None, "the model does not scale"
        known = self.laws.get(model.name)
        if known is not None and known[0] == targets:
            return known
        return targets, Autoscaling(targets_of(targets))

    def _changes(
        self, cluster: Cluster, models: list[Model], now_ns: int
    ) -> Iterator[ModelAutoscaled]:
        for model in models:
            signals = self._signals(cluster, model)
            scaling = self.laws[model.name][1].decide(signals, now_ns)
            if scaling.replicas != model.wanted:
                yield ModelAutoscaled(
                    name=model.name,
                    generation=model.generation,
                    replicas=scaling.replicas,
                    law=law_in_words(scaling, signals),
                )

    def _signals(self, cluster: Cluster, model: Model) -> Signals:
        reports = [
            found
            for _, demand in self.reports.values()
            if (found := demand.get(model.name)) is not None
        ]
        ready = model_view.ready_count(cluster, model)
        waiting = sum(each.waiting for each in reports)
        rate = sum(each.tokens_per_s for each in reports)
        idle = [each.idle_ms * MS_NS for each in reports if each.idle_ms is not None]
        return Signals(
            replicas=model.wanted,
            ready=ready,
            first_token_p90_ns=max((each.first_token_p90_us for each in reports), default=0)
            * US_NS,
            per_token_p90_ns=max((each.per_token_p90_us for each in reports), default=0) * US_NS,
            waiting_tokens=max(waiting, sum(each.waiting_tokens for each in reports)),
            outstanding=waiting + sum(each.outstanding for each in reports),
            replica_tokens_per_s=rate // max(1, ready),
            idle_ns=min(idle, default=None),
        )


def targets_of(targets: ScalingTargets) -> Targets:
    """Return the targets as the law reads them."""
    return Targets(
        least=targets.replicas_min,
        most=targets.replicas_max,
        first_token_ns=targets.first_token_ms * MS_NS,
        per_token_ns=targets.per_token_ms * MS_NS,
        concurrency=targets.concurrency,
        idle_ns=targets.idle_s * SECOND_NS,
    )


def law_in_words(scaling: Scaling, signals: Signals) -> str:
    """Return the observations, what each part of the law wants, and what held the number back."""
    return (
        f"{counted(signals.ready, 'replica')} ready, {signals.outstanding} outstanding, "
        f"{signals.waiting_tokens} tokens wait, p90 first token "
        f"{signals.first_token_p90_ns // MS_NS} ms, per token "
        f"{signals.per_token_p90_ns // MS_NS} ms; pressure {scaling.pressure_milli / 1_000:.2f} "
        f"wants {scaling.by_pressure}, the queue {scaling.by_queue}, concurrency "
        f"{scaling.by_concurrency}{HELD[scaling.held_by]}"
    )
