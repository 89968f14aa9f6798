"""Connect the sources of device errors with the agent: the driver's rounds and the kernel's log.

Simulated devices have two pipes in the state directory instead. What is written there counts as
having happened, in the same way as for real devices (docs/health.md).
"""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

from libs.common.devices.error_rows import catalogue, site_rows
from libs.common.model import Gpu
from libs.common.settings.settings import Settings
from services.node_agent.core.devices import SECOND_NS, Policy
from services.node_agent.core.observations import Observation
from services.node_agent.core.state import State
from services.node_agent.devices.attempts import key_of
from services.node_agent.devices.instances import Instances
from services.node_agent.devices.sampling import Sampling
from services.node_agent.drivers.local import LocalDriver
from services.node_agent.drivers.simulated import SimulatedDriver
from services.node_agent.health.watch import Limits, Watch
from services.node_agent.machine.line_pipe import LinePipe

KERNEL_PIPE: Final = "kernel-log"
DRIVER_PIPE: Final = "driver-events"

logger = logging.getLogger(__name__)


def policy_of(settings: Settings) -> Policy:
    """Return the policy of the settings. Raises Refused for an invalid catalogue or verdict."""
    return Policy(
        catalogue=catalogue(settings.health_catalogue),
        site=site_rows(settings.health_site),
        shadow=settings.health_shadow > 0,
        breaker_percent=settings.health_breaker_percent,
        breaker_ns=settings.health_breaker_s * SECOND_NS,
        share_grace_s=settings.share_grace_s,
    )


class WatchedDevices(Protocol):
    """The part of `device_work.DeviceWork` that the watch needs."""

    inventory: Sequence[Gpu]
    instances: Instances
    state: Callable[[], State]
    tell: Callable[[Observation], None]


def watch_of(
    settings: Settings,
    driver: LocalDriver | SimulatedDriver,
    devices: WatchedDevices,
    policy: Policy,
) -> Watch:
    """Return the watch that reports device errors and troubles to the agent."""
    most = settings.health_corrected_max, settings.health_link_errors_max
    limits = Limits(
        settings.health_pause_c, settings.health_resume_c, *most, settings.health_corrected_window_s
    )
    return Watch(
        limits,
        gpus=lambda: devices.inventory,
        tell=devices.tell,
        version_of=driver.version_of,
        key_of=lambda pid: key_of(devices.state(), pid),
        slices_of=devices.instances.slices_of,
        catalogue=policy.catalogue,
    )


def listen(
    settings: Settings, watch: Watch, driver: LocalDriver | SimulatedDriver, sampling: Sampling
) -> list[LinePipe]:
    """Return the pipes that are open until the agent ends."""
    sampling.on_round = watch.round

    def kernel(line: str) -> None:
        if watch.keep_line(line):
            sampling.wake.set()

    if not isinstance(driver, SimulatedDriver):
        return _opened(LinePipe(Path(settings.kernel_log), kernel))

    def event(line: str) -> None:
        if driver.hears(line):
            sampling.wake.set()

    state = Path(settings.state)
    return [
        pipe
        for path, on_line in ((KERNEL_PIPE, kernel), (DRIVER_PIPE, event))
        for pipe in _opened(LinePipe(state / path, on_line), True)
    ]


def _opened(pipe: LinePipe, make: bool = False) -> list[LinePipe]:
    """Open the pipe; log a warning and go on without it if it cannot be read."""
    try:
        pipe.open(make)
    except OSError as error:
        logger.warning(
            ("cannot read %s (%s): only device errors that the drivers report are known"),
            pipe.path,
            error,
        )
        return []
    return [pipe]
