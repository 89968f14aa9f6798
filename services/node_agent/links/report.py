"""The metrics of an agent's links, in Prometheus's text format.

Pure. Tests: tests/unit/test_link_choice.py.
"""

from collections.abc import Mapping

from services.node_agent.metrics.lines import family, labels
from services.node_agent.metrics.series import COUNTER


def link_metrics(node: str, counts: Mapping[tuple[str, str], tuple[int, int]]) -> list[str]:
    """Return the sessions that ended and their bytes, by side (dial, serve) and transport."""
    places = {
        each: labels({"Hostname": node, "side": each[0], "transport": each[1]}) for each in counts
    }
    sessions = ((places[each], count) for each, (count, _) in counts.items())
    sizes = ((places[each], size) for each, (_, size) in counts.items())
    return [
        *family("muster_link_sessions_total", "Links between agents that ended", COUNTER, sessions),
        *family("muster_link_bytes_total", "Bytes of links that ended", COUNTER, sizes),
    ]
