"""Program that asks a model through LiteLLM: `PYTHON ask_litellm.py URL KEY MODEL`."""

import json
import sys
from typing import Any

import litellm  # type: ignore[import-not-found,unused-ignore]
import openai

MESSAGES = [{"role": "user", "content": "hi"}]


def main(url: str, key: str, model: str) -> None:
    def ask(model: str, key: str = key, **more: Any) -> Any:
        return litellm.completion(
            model=f"openai/{model}",
            api_base=f"{url}/v1",
            api_key=key,
            messages=MESSAGES,
            max_tokens=8,
            num_retries=0,
            **more,
        )

    def refusal(*asked: str) -> str:
        try:
            ask(*asked)
        except openai.APIStatusError as error:
            return f"{type(error).__name__} {error.status_code}"
        return ""

    stream = list(ask(model, stream=True, stream_options={"include_usage": True}))
    found = {
        "chat_tokens": ask(model).usage.completion_tokens,
        "stream_chunks": len(stream),
        "stream_tokens": next(
            chunk.usage.completion_tokens for chunk in stream if getattr(chunk, "usage", None)
        ),
        "no_such_model": refusal("gone"),
        "wrong_key": refusal(model, "wrong"),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
