"""Settings of every simulated cluster."""

from typing import Final

from msgspec.structs import replace

from libs.common.settings.settings import Settings
from tests.sim.faults import Plan

SETTINGS: Final = Settings(
    heartbeat_ms=1_000,
    lease_ms=5_000,
    margin_ms=1_500,
    term_ms=2_000,
    stop_lease_ms=20_000,
    cluster_id="simulated",
    grow_after_s=2,
    hold_s=3,
    fabric_drain=1,
    fabric_exclude_s=3,
    state_hash_every=0,
)


def settings_of(plan: Plan, instance: str) -> Settings:
    """Return the settings of a scheduler in this run."""
    return replace(
        SETTINGS, instance=instance, lease_ms=plan.lease_ms, state_hash_every=plan.hash_every
    )
