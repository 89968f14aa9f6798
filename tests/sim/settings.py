"""Settings of every simulated cluster."""

from typing import Final

from libs.common.settings.settings import Settings

SETTINGS: Final = Settings(
    heartbeat_ms=1_000,
    lease_ms=5_000,
    margin_ms=1_500,
    term_ms=2_000,
    stop_lease_ms=20_000,
    cluster_id="simulated",
    grow_after_s=2,
    fabric_drain=1,
    fabric_exclude_s=3,
)
