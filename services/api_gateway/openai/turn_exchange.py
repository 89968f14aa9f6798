"""Tells the other gateways what this one charged tenants for models, and which requests wait here.

The rules are services/api_gateway/serving/shared_turns.py. Tests:
tests/integration/test_openai_shared_turns.py.
"""

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

import msgspec

from libs.common import subjects
from libs.common.errors import Unavailable
from libs.common.messages import model_turns
from libs.common.messages.model_turns import ModelTurns
from libs.common.transport.bus import Bus

if TYPE_CHECKING:
    from services.api_gateway.openai.queues import Queues

EVERY_S: Final = 0.2


class TurnExchange:
    """The exchange of one gateway."""

    def __init__(self, queues: "Queues", bus: Bus, instance: str) -> None:
        self.queues = queues
        self.bus = bus
        self.subject: Final = subjects.turns(instance)

    async def listen(self) -> None:
        await self.bus.subscribe(subjects.turns("*"), self._on_turns)

    async def run(self) -> None:
        """Tell the other gateways for ever."""
        while True:
            await asyncio.sleep(EVERY_S)
            for name, queue in list(self.queues.queues.items()):
                if turns := queue.share_turns():
                    with contextlib.suppress(Unavailable):
                        await self.bus.publish(
                            self.subject, model_turns.encode(ModelTurns(name, turns))
                        )

    async def _on_turns(self, subject: str, data: bytes) -> bytes | None:
        if subject != self.subject:
            with contextlib.suppress(msgspec.DecodeError):
                told = model_turns.decode(data)
                if self.queues.gateway.models.get(told.model) is not None:
                    self.queues.of(told.model).hear_turns(subject, told.turns)
        return None
