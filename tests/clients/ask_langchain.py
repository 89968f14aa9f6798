"""Program that asks a model through LangChain: `PYTHON ask_langchain.py URL KEY MODEL`."""

import asyncio
import json
import sys
from typing import Any

import openai
from langchain_openai import ChatOpenAI  # type: ignore[import-not-found,unused-ignore]


def main(url: str, key: str, model: str) -> None:
    def chat(model: str, key: str = key) -> Any:
        return ChatOpenAI(
            base_url=f"{url}/v1",
            api_key=key,
            model=model,
            max_completion_tokens=8,
            max_retries=0,
            stream_usage=True,
        )

    def refusal(*asked: str) -> str:
        try:
            chat(*asked).invoke("hi")
        except openai.APIStatusError as error:
            return f"{type(error).__name__} {error.status_code}"
        return ""

    async def several() -> list[Any]:
        return list(await asyncio.gather(*(chat(model).ainvoke("hi") for _ in range(4))))

    stream = list(chat(model).stream("hi"))
    found = {
        "chat_tokens": chat(model).invoke("hi").usage_metadata["output_tokens"],
        "at_once": [one.usage_metadata["output_tokens"] for one in asyncio.run(several())],
        "stream_chunks": len(stream),
        "stream_tokens": sum(
            chunk.usage_metadata["output_tokens"] for chunk in stream if chunk.usage_metadata
        ),
        "no_such_model": refusal("gone"),
        "wrong_key": refusal(model, "wrong"),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
