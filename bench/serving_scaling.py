"""Autoscaling in virtual time, for `serving.py`: the law beside a fixed number of replicas for the
peak.

A replica needs 100 s to start and is drained before it stops. Users' requests rise and fall in
waves. The target is a first token within two seconds; attainment is the part of requests that meet
it.
"""

from typing import Final

from bench.cluster import QUICK, quantile, say
from bench.serving_traces import SECOND_NS, hashing, waves
from services.scheduler.models.autoscaling import Autoscaling, Scaling, Signals, Targets
from tests.sim.engine import Asked, EngineSettings
from tests.sim.serving import Run
from tests.sim.serving_gateway import MusterGateway

TARGET_NS: Final = 2 * SECOND_NS
START_NS: Final = 100 * SECOND_NS
MOST: Final = 8
SECONDS: Final = 1_800 if QUICK else 7_200
WAVES: Final = 1 if QUICK else 2
LOW: Final = 0.5
HIGH: Final = 8.0
# Waiting times of this long ago count for the p90.
WINDOW_NS: Final = 60 * SECOND_NS
# Input tokens per second of one engine in this load, prompts and answers together.
REPLICA_RATE: Final = 12_000


class Scaled(MusterGateway):
    """Muster's gateway, with the law applied once a second."""

    def __init__(self, first: int) -> None:
        super().__init__(hashing())
        self.law = Autoscaling(Targets(least=1, most=MOST, first_token_ns=TARGET_NS))
        self.last: Scaling | None = None
        self.starting = 0
        self.count = first
        self.next = first
        self.seen: list[tuple[int, int]] = []
        self.counts: list[int] = []
        self.draining: list[int] = []
        self._decided_ns = -1

    def first_token(self, run: Run, asked: Asked, replica: int, now_ns: int) -> None:
        self.seen.append((now_ns, now_ns - asked.at_ns))
        super().first_token(run, asked, replica, now_ns)

    def ticked(self, run: Run, now_ns: int) -> None:
        super().ticked(run, now_ns)
        # A replica that becomes ready also causes a call here; the law is computed once a second.
        if now_ns % SECOND_NS or now_ns == self._decided_ns:
            return
        self._decided_ns = now_ns
        self.starting = self.count - len(run.ready)
        self.draining = [each for each in self.draining if run.engines[each].started]
        self.counts.append(self.count + len(self.draining))
        self.seen = [each for each in self.seen if now_ns - each[0] <= WINDOW_NS]
        waits = [float(took) for _, took in self.seen] or [0.0]
        signals = Signals(
            replicas=self.count,
            ready=len(run.ready),
            first_token_p90_ns=int(quantile(waits, 0.9)),
            per_token_p90_ns=0,
            waiting_tokens=self.waiting_tokens,
            outstanding=len(self._running),
            replica_tokens_per_s=REPLICA_RATE,
        )
        self.last = self.law.decide(signals, now_ns)
        for _ in range(self.last.replicas - self.count):
            run.after(START_NS, self.next, now_ns)
            self.next += 1
            self.count += 1
        while self.count > self.last.replicas and len(run.ready) > 1:
            gone = min(run.ready, key=lambda each: len(run.engines[each].started))
            run.stop_sending(gone)
            self.router.forget(gone)
            self.draining.append(gone)
            self.count -= 1


def scale() -> None:
    """Print attainment and mean replicas, of the law and of eight fixed replicas."""
    trace = waves(SECONDS, WAVES, LOW, HIGH)
    scaled = Scaled(2)
    fixed = MusterGateway(hashing())
    for name, gateway, first in (("law", scaled, 2), ("peak", fixed, MOST)):
        run = Run(gateway, first, EngineSettings())
        run.run(trace)
        met = sum(
            1
            for asked in trace
            if (outcome := run.outcomes[asked.name]).first_ns
            and outcome.first_ns - asked.at_ns <= TARGET_NS
        )
        counts = scaled.counts if name == "law" else [MOST]
        say("slo_attainment_pct", 100 * met / len(trace), "%", len(trace), replicas=name)
        say(
            "mean_replicas",
            sum(counts) / len(counts),
            "replicas",
            len(counts),
            replicas=name,
            most=max(counts),
            start_s=START_NS // SECOND_NS,
        )
