"""Program that calls a gateway with the old client (openai==0.28) and prints one JSON object.

`PYTHON openai_old_client.py URL KEY`. It imports nothing of this project, for its environment has
nothing of it.
"""

import json
import sys
from typing import Any

import openai  # type: ignore[import-not-found,unused-ignore]


def main(url: str, key: str) -> None:
    old: Any = openai
    old.api_base, old.api_key = url + "/v1", key
    messages = [{"role": "user", "content": "hi"}]
    chat = old.ChatCompletion.create(model="m", messages=messages)
    stream = old.ChatCompletion.create(model="m", messages=messages, stream=True)
    words = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in stream)
    try:
        old.ChatCompletion.create(model="gone", messages=messages)
        refused = ""
    except old.error.InvalidRequestError as error:
        refused = f"{error.http_status} {error.code} {error.param}"
    old.api_key = "wrong"
    try:
        old.Model.list()
        unknown_key = False
    except old.error.AuthenticationError:
        unknown_key = True
    old.api_key = key
    found = {
        "version": old.__version__,
        "chat": chat["choices"][0]["message"]["content"],
        "words": words,
        "completion": old.Completion.create(model="m", prompt="p")["choices"][0]["text"],
        "embedding": old.Embedding.create(model="m", input="i", encoding_format="float")["data"][0][
            "embedding"
        ],
        "models": [each["id"] for each in old.Model.list()["data"]],
        "refused": refused,
        "unknown_key": unknown_key,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
