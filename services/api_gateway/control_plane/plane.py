"""The control plane as one gateway sees it, refreshed regularly: no request waits for it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from libs.common.errors import Unavailable
from libs.common.leadership.telling import tell
from libs.common.process.clock import Clock
from libs.common.process.serving_tasks import serve_together
from libs.common.settings.settings import Settings
from libs.common.subjects import GATEWAY_KIND
from libs.common.transport.bus import Bus
from libs.common.transport.log_survey import LogSurvey
from services.api_gateway.control_plane import expiry, growth
from services.api_gateway.control_plane.expiry import CertificateSeen
from services.api_gateway.control_plane.growth import Growth
from services.api_gateway.control_plane.members import Members

SURVEY_S: Final = 5.0
CERTIFICATES_S: Final = 60.0

logger = logging.getLogger(__name__)


class ControlPlane:
    """The view of this gateway. `read_seq` returns the last commit that it has folded itself."""

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        settings: Settings,
        survey: Callable[[], Awaitable[LogSurvey]],
        read_seq: Callable[[], int],
    ) -> None:
        self.bus = bus
        self.clock = clock
        self.settings = settings
        self.survey = survey
        self.read_seq = read_seq
        self.members = Members(bus, clock, read_seq)
        self.log: LogSurvey | None = None
        self.growth = Growth()
        self.certificates: list[CertificateSeen] = []
        self.warned = ""

    async def run(self) -> None:
        """Listen, report this gateway, and refresh, until cancelled."""
        await self.members.listen()
        await serve_together(
            telling=tell(
                self.bus, GATEWAY_KIND, self.settings.instance, lambda: (True, 0, self.read_seq())
            ),
            log=self._keep_log(),
            certificates=self._keep_certificates(),
        )

    async def _keep_log(self) -> None:
        while True:
            try:
                self.log = await self.survey()
            except Unavailable:
                pass  # the last survey stays, and /readyz shows the fault
            else:
                self.growth.note(self.clock.boot_ns(), self.log.bytes)
                self._warn(growth.warning(self.log.bytes, self.log.bytes_max))
            await asyncio.sleep(SURVEY_S)

    def _warn(self, text: str) -> None:
        if text and text != self.warned:
            logger.warning(text)
        self.warned = text

    async def _keep_certificates(self) -> None:
        files = expiry.files_of(self.settings).items()
        while True:
            self.certificates = await asyncio.to_thread(expiry.read, files)
            await asyncio.sleep(CERTIFICATES_S)
