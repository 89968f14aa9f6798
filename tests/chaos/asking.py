"""Clients that send requests to two models through two gateways, streaming and not, and keep every
outcome.

A client tries the other gateway only if it knows that no replica received the request: the
connection failed, or the gateway refused (503). `model_checks.py` judges every other outcome.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Final

import aiohttp

from tests.chaos.cluster import AGAIN_S
from tests.chaos.model_checks import LATE, REFUSED, Heard, Outcome, judge

CHAT: Final = "/v1/chat/completions"
WORDS: Final = 12
REQUEST_S: Final = 60.0
CLIENTS: Final = 32


class Asking:
    """`gateways` are names of processes and where each listens."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        gateways: Sequence[tuple[str, str]],
        models: Sequence[str],
    ) -> None:
        self.session, self.gateways, self.models = session, gateways, models
        self.outcomes: list[Outcome] = []
        self.again = 0
        self.longest_s = 0.0
        self.over = False

    async def run(self) -> None:
        """Until `over`."""
        await asyncio.gather(*(self._client(number) for number in range(CLIENTS)))

    async def _client(self, number: int) -> None:
        """Even clients stream; models and gateways take turns in all combinations."""
        asked = 0
        while not self.over:
            asked += 1
            model = self.models[number // 2 % len(self.models)]
            text = " ".join([f"{model}-{number}-{asked}", *(f"w{place}" for place in range(WORDS))])
            began = time.monotonic()
            self.outcomes.append(
                await self._until_ended(text, model, number % 2 == 0, number // 4 + asked)
            )
            self.longest_s = max(self.longest_s, time.monotonic() - began)

    async def _until_ended(self, text: str, model: str, stream: bool, turn: int) -> Outcome:
        deadline = time.monotonic() + REQUEST_S
        said = "never asked"
        while time.monotonic() < deadline:
            name, url = self.gateways[turn % len(self.gateways)]
            heard = await self._ask(url, text, model, stream)
            end = judge(f"You said: {text}", stream, heard) if heard is not None else REFUSED
            if end != REFUSED:
                return Outcome(
                    text=text,
                    model=model,
                    gateway=name,
                    end=end,
                    at_ns=time.monotonic_ns(),
                    detail=heard.text if heard is not None else "",
                )
            said = heard.text if heard is not None else "no connection"
            turn, self.again = turn + 1, self.again + 1
            await asyncio.sleep(AGAIN_S)
        return Outcome(
            text=text, model=model, gateway=name, end=LATE, at_ns=time.monotonic_ns(), detail=said
        )

    async def _ask(self, url: str, text: str, model: str, stream: bool) -> Heard | None:
        """Send one request; return None if there was no connection."""
        body = {"model": model, "stream": stream, "messages": [{"role": "user", "content": text}]}
        status, pieces = 0, bytearray()
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
        return Heard(status, pieces.decode(errors="replace"), False)
