"""Checks that the settings of an agent fit together, before it starts."""

from libs.common.errors import Refused
from libs.common.model import GPUS_PER_NODE_MAX, ID_PATTERN
from libs.common.settings.settings import Settings
from services.node_agent.fabric import choice
from services.node_agent.supervisor.execs import EXECS_MAX

FENCE_MAX_S = 600


def check_settings(settings: Settings) -> None:
    """Raise Refused with the first setting that is wrong."""
    if ID_PATTERN.fullmatch(settings.node_id) is None:
        raise Refused(
            f"MUSTER_NODE_ID={settings.node_id!r} must match {ID_PATTERN.pattern}: name this node"
        )
    if settings.gpu_driver not in ("simulated", "local"):
        raise Refused(
            f"MUSTER_GPU_DRIVER={settings.gpu_driver!r} is unknown: set it to simulated or local"
        )
    if not 0 <= settings.simulated_gpus <= GPUS_PER_NODE_MAX:
        raise Refused(
            f"MUSTER_SIMULATED_GPUS={settings.simulated_gpus} must be from 0 to {GPUS_PER_NODE_MAX}"
        )
    if any("=" not in part for part in settings.node_labels.split(",") if part):
        raise Refused(
            f"MUSTER_NODE_LABELS={settings.node_labels!r} must be name=value pairs, "
            "separated by commas"
        )
    if settings.link_transport not in choice.WANTED:
        raise Refused(
            f"MUSTER_LINK_TRANSPORT={settings.link_transport!r} is unknown: set it to "
            f"{' or '.join(choice.WANTED)}"
        )
    if settings.hardware_watchdog and not 1 <= settings.hardware_watchdog_s <= FENCE_MAX_S:
        raise Refused(
            f"MUSTER_HARDWARE_WATCHDOG_S={settings.hardware_watchdog_s} must be from 1 to "
            f"{FENCE_MAX_S}: give the hardware less time than the cluster's lease"
        )
    if settings.execs_per_job > EXECS_MAX:
        raise Refused(
            f"MUSTER_EXECS_PER_JOB={settings.execs_per_job} must be from 0 to {EXECS_MAX}"
        )
