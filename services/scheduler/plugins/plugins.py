"""The loading of plug-ins: the entry points `muster.orders` and `muster.scores` of other packages.

Each is first tried twice on a small cluster (`plugin_trial.py`). A bad one is refused with one line
in the log; no plug-in stops a scheduler. The loaded ones are in `policies.PLUGGED` and
`strategies.PLUGGED`. The user's page is docs/howto/add-a-policy.md.
"""

import logging
from collections.abc import Callable, Iterable
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from libs.common.model import ID_PATTERN
from libs.common.state.cluster import Job
from libs.common.state.ordering import JobQueue
from libs.common.state.plugins import ORDER, SCORE, PluginFault
from services.scheduler.placement import strategies
from services.scheduler.placement.ranking import CROSSED_BITS
from services.scheduler.placement.strategies import best_fit
from services.scheduler.plugins.plugged import Guard, Plugged
from services.scheduler.plugins.plugin_trial import trial
from services.scheduler.policies import PLUGGED, POLICIES, Policy, priority

GROUPS: Final = ((ORDER, "muster.orders"), (SCORE, "muster.scores"))
PLUGINS_MAX: Final = 32
KEY_LENGTH_MAX: Final = 8
# Less than the weight of a topology level.
SCORE_MAX: Final = 1 << (CROSSED_BITS - 2)

logger = logging.getLogger(__name__)


def load(found: Iterable[tuple[str, EntryPoint]] | None = None) -> Plugged:
    """Load all installed plug-ins, or the given ones."""
    plugged = Plugged()
    for kind, point in _installed() if found is None else found:
        version = point.dist.version if point.dist is not None else ""
        if reason := _refusal(plugged, kind, point.name) or _plug(plugged, kind, point, version):
            logger.error("the %s %s (%s) is refused: %s", kind, point.name, point.value, reason)
        else:
            _versions(plugged, kind)[point.name] = version
            logger.info(
                "the %s %s (%s), version %s, is a plug-in", kind, point.name, point.value, version
            )
    return plugged


def _installed() -> list[tuple[str, EntryPoint]]:
    points = [(kind, point) for kind, group in GROUPS for point in entry_points(group=group)]
    return sorted(points, key=lambda each: (each[0], each[1].name, each[1].value))


def _versions(plugged: Plugged, kind: str) -> dict[str, str]:
    return plugged.orders if kind == ORDER else plugged.scores


def _refusal(plugged: Plugged, kind: str, name: str) -> str:
    """Return what is wrong with the plug-in's name; empty if it is good."""
    if not ID_PATTERN.fullmatch(name.replace("_", "-")):
        return "a name consists of at most 63 lower-case letters, digits, - and _"
    if name in (POLICIES if kind == ORDER else strategies.STRATEGIES):
        return "a built-in one has this name"
    if name in _versions(plugged, kind):
        return "another plug-in has this name"
    return (
        f"there are {PLUGINS_MAX} plug-ins already, the most that are loaded"
        if len(plugged.orders) + len(plugged.scores) >= PLUGINS_MAX
        else ""
    )


def _plug(plugged: Plugged, kind: str, point: EntryPoint, version: str) -> str:
    """Register the plug-in if it passes its trial; otherwise return what is wrong with it."""
    loading = Guard(point.load, lambda reason: refused.append(reason), callable, lambda: None)
    refused: list[str] = []
    call = loading()
    if refused:
        return f"when it was loaded, {refused[0]}"
    guard = _guard(
        kind,
        call,
        lambda reason: plugged.faults.append(PluginFault(kind, point.name, version, reason)),
    )
    places: dict[str, Any] = PLUGGED if kind == ORDER else strategies.PLUGGED
    places[point.name] = Policy(guard) if kind == ORDER else guard
    first, second = (trial(kind, point.name, version) for _ in range(2))
    if not plugged.faults and first == second and guard.calls:
        return ""
    del places[point.name]
    reasons = [fault.reason for fault in plugged.faults]
    plugged.faults.clear()
    return reasons[0] if reasons else "two trials on the same cluster led to different decisions"


def _guard(kind: str, call: Callable[..., Any], fault: Callable[[str], None]) -> Guard:
    if kind == SCORE:
        return Guard(call, fault, _is_score, best_fit.score)
    return Guard(partial(_key, call), fault, _is_key, priority.key)


def _key(call: Callable[..., Any], job: Job, queue: JobQueue, now_ns: int) -> Any:  # noqa: ANN401  the plug-in's result, not checked yet
    """Append the submission to the key, so that no two jobs have the same one."""
    found = call(job, queue, now_ns)
    return (*found, job.seq) if isinstance(found, tuple) else found


def _is_key(value: object) -> bool:
    return (
        isinstance(value, tuple)
        and 1 < len(value) <= KEY_LENGTH_MAX + 1
        and all(type(part) is int for part in value)
    )


def _is_score(value: object) -> bool:
    return type(value) is int and abs(value) < SCORE_MAX
