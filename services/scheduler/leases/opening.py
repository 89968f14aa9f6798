"""The facts of a term's first commit."""

from libs.common.facts import AnyFact, ClusterConfigured, TermBegan
from libs.common.settings.settings import Settings
from libs.common.state.cluster import Cluster
from libs.common.timing import Timing
from services.scheduler.plugins.plugged import Plugged


def opening_facts(settings: Settings, plugins: Plugged, cluster: Cluster) -> list[AnyFact]:
    """Return the facts of a term's first commit, in which a new cluster is configured as well."""
    began = TermBegan(instance=settings.instance, orders=plugins.orders, scores=plugins.scores)
    if cluster.configured:
        return [began]
    timing = Timing(settings.heartbeat_ms, settings.lease_ms, settings.margin_ms, settings.term_ms)
    return [began, ClusterConfigured(cluster_id=settings.cluster_id, timing=timing)]
