"""Questions of an agent to the gateways; any gateway may answer.

Retries bridge a gateway that is just starting. The job's own start limit bounds all of it.
"""

import asyncio
from typing import Final, TypeVar

import msgspec

from libs.common.errors import Refused, Unavailable
from libs.common.transport.bus import Bus

ASK_S: Final = 5.0
ASK_TRIES: Final = 4
ASK_AGAIN_S: Final = 1.0

T = TypeVar("T")


async def ask(
    subject: str, question: msgspec.Struct, answer: type[T], bus: Bus, tries: int = ASK_TRIES
) -> T:
    """Return the answer of a gateway. Raises Refused if none answers."""
    data = msgspec.msgpack.encode(question)
    for left in reversed(range(tries)):
        try:
            return msgspec.msgpack.decode(await bus.request(subject, data, ASK_S), type=answer)
        except (Unavailable, msgspec.DecodeError) as error:
            if not left:
                raise Refused(f"no gateway answered ({error})") from error
        await asyncio.sleep(ASK_AGAIN_S)
    raise AssertionError("the loop above returns or raises")
