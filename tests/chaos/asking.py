"""Clients that send requests to two models through two gateways, and keep every outcome.

So many clients stream that STREAMS streams are open nearly always; others wait for whole answers.
A client tries the other gateway if it has no answer: the connection failed, the gateway refused
(503), or the connection broke, as that of a killed gateway does. It keeps each broken connection.
`model_checks.py` judges these and every outcome.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from typing import Final

import aiohttp

from tests.chaos.cluster import AGAIN_S
from tests.chaos.model_checks import CUT, LATE, REFUSED, Heard, Outcome, judge, reason_of

CHAT: Final = "/v1/chat/completions"
# With the pace of the replicas a stream lasts most of a second.
WORDS: Final = 40
REQUEST_S: Final = 60.0
STREAMS: Final = 64
WHOLES: Final = 16


class Asking:
    """`gateways` are names of processes and where each listens.

    `cuts` are broken connections, whose requests were sent again; `again` counts the tries without
    an answer by their reason. `open` are the streams that are open now, `opened` what that was at
    each begin of a stream.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        gateways: Sequence[tuple[str, str]],
        models: Sequence[str],
    ) -> None:
        self.session, self.gateways, self.models = session, gateways, models
        self.outcomes: list[Outcome] = []
        self.cuts: list[Outcome] = []
        self.again: Counter[str] = Counter()
        self.open = 0
        self.opened: list[int] = []
        self.longest_s = 0.0
        self.over = False

    async def run(self) -> None:
        """Until `over`."""
        await asyncio.gather(*(self._client(number) for number in range(STREAMS + WHOLES)))

    async def _client(self, number: int) -> None:
        """The first clients stream; models and gateways take turns in all combinations."""
        asked = 0
        while not self.over:
            asked += 1
            model = self.models[number % len(self.models)]
            text = " ".join([f"{model}-{number}-{asked}", *(f"w{place}" for place in range(WORDS))])
            began = time.monotonic()
            self.outcomes.append(
                await self._until_ended(text, model, number < STREAMS, number // 2 + asked)
            )
            self.longest_s = max(self.longest_s, time.monotonic() - began)

    async def _until_ended(self, text: str, model: str, stream: bool, turn: int) -> Outcome:
        deadline = time.monotonic() + REQUEST_S
        said = "never asked"
        while time.monotonic() < deadline:
            name, url = self.gateways[turn % len(self.gateways)]
            heard = await self._ask(url, text, model, stream)
            end = judge(f"You said: {text}", stream, heard) if heard is not None else REFUSED
            said = heard.text if heard is not None else "no connection"
            found = Outcome(
                text=text,
                model=model,
                gateway=name,
                end=end,
                at_ns=time.monotonic_ns(),
                detail=said,
            )
            if end not in (REFUSED, CUT):
                return found
            if end == CUT:
                self.cuts.append(found)
            self.again[CUT if end == CUT else reason_of(said)] += 1
            turn += 1
            await asyncio.sleep(AGAIN_S)
        return Outcome(
            text=text, model=model, gateway=name, end=LATE, at_ns=time.monotonic_ns(), detail=said
        )

    async def _ask(self, url: str, text: str, model: str, stream: bool) -> Heard | None:
        """Send one request; return None if there was no connection."""
        body = {"model": model, "stream": stream, "messages": [{"role": "user", "content": text}]}
        status, pieces = 0, bytearray()
        self.open += stream
        if stream:
            self.opened.append(self.open)
        try:
            async with self.session.post(url + CHAT, json=body) as response:
                status = response.status
                async for piece in response.content.iter_any():
                    pieces += piece
        except aiohttp.ClientConnectorError:
            return None
        except TimeoutError:
            return Heard(
                status,
                f"nothing more within its time after {pieces.decode(errors='replace')}",
                False,
            )
        except (aiohttp.ClientError, OSError):
            return Heard(status, pieces.decode(errors="replace"), True)
        finally:
            self.open -= stream
        return Heard(status, pieces.decode(errors="replace"), False)
