"""Tells the gateways of one process of a service, so that operators see all of them."""

import asyncio
from collections.abc import Callable
from typing import Final, NoReturn

from libs.common import subjects
from libs.common.installed import version
from libs.common.messages.member_messages import MemberSign, encode
from libs.common.transport.bus import Bus

EVERY_S: Final = 1.0


async def tell(
    bus: Bus, service: str, instance: str, now: Callable[[], tuple[bool, int, int]]
) -> NoReturn:
    """Publish a sign of this process for ever; `now` returns whether it leads, its term, and the
    last commit that it has read.
    """
    subject, installed = subjects.member(service, instance), version()
    while True:
        await bus.publish(subject, encode(MemberSign(*now(), version=installed)))
        await asyncio.sleep(EVERY_S)
