#!/usr/bin/env python3
"""Send many prompts to a model, some at a time; run it again to go on after an interruption.

    examples/batch_inference.py --model chat prompts.jsonl answers.jsonl

Each line of the input is {"id": ..., "prompt": ...}. The header `x-muster-priority: low` lets
requests of people go first. The gateway speaks OpenAI's protocol (pip install openai).
"""

import argparse
import asyncio
import json
import os
from pathlib import Path
from typing import IO

from openai import AsyncOpenAI

RETRIES = 8  # of the client, which waits as Retry-After says


async def main() -> None:
    """Answer the prompts that the output does not have yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("answers", type=Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--at-once", type=int, default=16)
    asked = parser.parse_args()
    rows = [json.loads(line) for line in asked.prompts.read_text().splitlines()]
    had = asked.answers.read_text().splitlines() if asked.answers.exists() else []
    done = {json.loads(line)["id"] for line in had}
    todo = [row for row in rows if row["id"] not in done]
    client = AsyncOpenAI(
        base_url=os.environ.get("MUSTER_URL", "http://127.0.0.1:8080") + "/v1",
        api_key=os.environ["MUSTER_API_KEY"],
        max_retries=RETRIES,
        default_headers={"x-muster-priority": "low"},
    )
    room = asyncio.Semaphore(asked.at_once)
    with asked.answers.open("a") as out:
        await asyncio.gather(*(answer(client, asked.model, row, room, out) for row in todo))
    print(f"{len(todo)} answered, {len(done)} were there already")


async def answer(
    client: AsyncOpenAI, model: str, row: dict[str, str], room: asyncio.Semaphore, out: IO[str]
) -> None:
    """Ask for one answer, and write it as one line."""
    async with room:
        message = {"role": "user", "content": row["prompt"]}
        found = await client.chat.completions.create(model=model, messages=[message])
    line = {"id": row["id"], "answer": found.choices[0].message.content}
    print(json.dumps(line), file=out, flush=True)


if __name__ == "__main__":
    asyncio.run(main())
