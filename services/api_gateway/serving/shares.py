"""Measures what each flow got of a model in the last minute, and how equal that is.

Tokens are counted as they are charged. `refresh` cuts the time into spans. Jain's index compares
only flows that had requests waiting at both ends of a span, because a tenant that asks for little
gets little of its own accord. Pure. Tests: tests/unit/test_serving_shares.py.
"""

from collections import deque
from collections.abc import Mapping
from typing import Final

from services.api_gateway.serving.fairness import Flow, jain

WINDOW_NS: Final = 60_000_000_000
# More spans than fit into the window at any useful interval.
SPANS_MAX: Final = 128


class _Span:
    """The tokens of one span, and the weights of the flows that waited at its ends."""

    def __init__(self, begun_ns: int, waiting: Mapping[Flow, int]) -> None:
        self.begun_ns = begun_ns
        self.tokens: dict[Flow, int] = {}
        self.waiting = dict(waiting)


class Shares:
    """The shares of one model."""

    def __init__(self) -> None:
        self._spans: deque[_Span] = deque([_Span(0, {})], maxlen=SPANS_MAX)

    def charge(self, flow: Flow, tokens: int) -> None:
        """Count tokens of the flow; negative numbers correct an estimate."""
        now = self._spans[-1].tokens
        now[flow] = now.get(flow, 0) + tokens

    def refresh(self, waiting: Mapping[Flow, int], now_ns: int) -> None:
        """End a span and begin the next. `waiting` are the weights of the flows that wait now."""
        last = self._spans[-1]
        last.waiting = {flow: last.waiting[flow] for flow in waiting if flow in last.waiting}
        self._spans.append(_Span(now_ns, waiting))
        while len(self._spans) > 1 and self._spans[1].begun_ns <= now_ns - WINDOW_NS:
            self._spans.popleft()

    def tokens(self) -> dict[Flow, int]:
        """Return the tokens of each flow in the last minute."""
        found: dict[Flow, int] = {}
        for span in self._spans:
            for flow, tokens in span.tokens.items():
                found[flow] = found.get(flow, 0) + tokens
        return {flow: max(0, tokens) for flow, tokens in found.items()}

    def jain(self, band: int) -> float:
        """Return Jain's index of what the band's flows got; 1.0 if fewer than two waited.

        It compares the tokens for each unit of weight, in the spans in which the flows waited.
        """
        got: dict[Flow, list[float]] = {}
        for span in list(self._spans)[:-1]:
            flows = [flow for flow in span.waiting if flow.band == band]
            if len(flows) < 2:
                continue
            for flow in flows:
                share = max(0, span.tokens.get(flow, 0)) / span.waiting[flow]
                got.setdefault(flow, []).append(share)
        return jain(sum(shares) / len(shares) for shares in got.values())
