"""Check that the services of the head work: each has a leader, and keeps it.

The gateway alone answers most requests also while no scheduler runs, so an answer says nothing
about the other services. Pure. Tests: tests/unit/test_deploy_leaders.py.
"""

from collections.abc import Mapping
from typing import Any, Final

from libs.common.errors import Unavailable
from libs.common.subjects import QUOTA_KIND, SCHEDULER_KIND

# The answer of GET /v1/cluster.
Shown = Mapping[str, Any]

# The services of which one process leads.
LED: Final = (SCHEDULER_KIND, QUOTA_KIND, "audit")
NS: Final = 1_000_000_000
# Longer than the 5 s after which the gateway shows a silent process as away.
KEPT_NS: Final = 6 * NS


def terms(shown: Shown | None) -> dict[str, int]:
    """Return the newest term of each service with a leader; 0 for a service that has had none.

    Empty for None: the gateway is of a version that does not show its services.
    """
    if shown is None:
        return {}
    newest = dict.fromkeys(LED, 0)
    for member in shown["members"]:
        if member["service"] in newest:
            newest[member["service"]] = max(newest[member["service"]], member["epoch"])
    return newest


class Leaders:
    """The leaders of the services after a start of the head.

    `before` has the newest term of each service before the start. Leaders of these terms and of
    older ones do not count.
    """

    def __init__(self, before: Mapping[str, int]) -> None:
        self.before = before
        self.led: dict[str, int] = {}
        self.since_ns = 0

    def forget(self) -> None:
        """Begin again, because the gateway did not answer."""
        self.led = {}

    def are_kept(self, shown: Shown | None, now_ns: int) -> bool:
        """Return whether every service has had its leader for KEPT_NS, by repeated calls.

        A process that fails soon after its start leads for a moment only. Raises Unavailable if a
        service has no leader. None: the gateway does not show its services; it must answer for as
        long.
        """
        led = self._led(shown)
        if led != self.led:
            self.led, self.since_ns = led, now_ns
        if missing := [service for service in LED if service not in led]:
            raise Unavailable(f"no process leads: {', '.join(missing)}")
        return now_ns - self.since_ns >= KEPT_NS

    def _led(self, shown: Shown | None) -> dict[str, int]:
        """Return the term of each service with a leader that counts; 0 for all if none is shown."""
        if shown is None:
            return dict.fromkeys(LED, 0)
        return {
            member["service"]: member["epoch"]
            for member in shown["members"]
            if member["state"] == "leader"
            and member["service"] in LED
            and member["epoch"] > self.before.get(member["service"], 0)
        }
