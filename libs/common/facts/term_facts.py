"""Facts of a scheduler about its own term: that it began, the clockwork and the plug-ins that
count, and what outlasts it.

Pure; part of the union in `facts.py`.
"""

from libs.common.facts.fact import Fact
from libs.common.model import Timing


class TermBegan(Fact, frozen=True, tag="term.began"):
    """A scheduler's term; the stream sequence of its commit is the epoch.

    `orders` and `scores` are its plug-ins, with their versions.
    """

    instance: str
    orders: dict[str, str] = {}  # noqa: RUF012  (msgspec copies it)
    scores: dict[str, str] = {}  # noqa: RUF012


class ClusterConfigured(Fact, frozen=True, tag="cluster.configured"):
    cluster_id: str
    timing: Timing = Timing()


class LeaseExtended(Fact, frozen=True, tag="lease.extended"):
    """A planned stop: every living node may go on for `duration_ms` after this commit without
    hearing from anyone.

    0: a later term has waited as long by its own clock, or every node has taken a lease of that
    term: no node holds such a lease any more.
    """

    duration_ms: int


class PluginDisabled(Fact, frozen=True, tag="plugin.disabled"):
    """This version of a plug-in is asked no more: it went bad.

    `extends` says what it is: an order or a score (`plugins.py`). What named it goes by the
    scheduler's default. Another version is another plug-in.
    """

    extends: str
    name: str
    version: str
    reason: str
