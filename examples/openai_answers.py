"""Requests and answers of the stand-in model server (model_server.py), in the OpenAI protocol."""

import hashlib
import os
import time
from collections.abc import Iterator
from typing import Any

FINGERPRINT = "muster-stand-in"
DIMENSIONS = 64
TOKENS_MAX_DEFAULT = 256
CHOICES_MAX = 16
Json = dict[str, Any]


class Wrong(Exception):
    """An invalid request, in OpenAI's error shape."""

    def __init__(
        self,
        message: str,
        param: str | None = None,
        status: int = 400,
        kind: str = "invalid_request_error",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": None}}


def tokens_of(text: str) -> list[str]:
    """Return the words with the space before them; joined they are the text again."""
    words = text.split(" ")
    return [word if index == 0 else f" {word}" for index, word in enumerate(words)] if text else []


def text_of(content: object) -> str:
    """Return a message's text; for a list of parts, the text parts joined."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return " ".join(
        str(part.get("text", ""))
        for part in parts
        if isinstance(part, dict) and part.get("type") == "text"
    )


def chat_prompt(body: Json) -> str:
    messages = body.get("messages")
    if (
        not isinstance(messages, list)
        or not messages
        or not all(isinstance(message, dict) for message in messages)
    ):
        raise Wrong("messages must be a list of at least one message", "messages")
    return "\n".join(text_of(message.get("content")) for message in messages)


def completion_prompt(body: Json) -> str:
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str):
        raise Wrong(
            "prompt must be one string: this stand-in answers no lists of prompts", "prompt"
        )
    return prompt


def reply_to(prompt: str) -> str:
    """Return the last line of the prompt as the answer."""
    return f"You said: {prompt.splitlines()[-1] if prompt.splitlines() else ''}"


def limit_of(body: Json) -> int:
    limit = body.get("max_completion_tokens", body.get("max_tokens")) or TOKENS_MAX_DEFAULT
    if not isinstance(limit, int) or limit < 1:
        raise Wrong("max_tokens must be a whole number above 0", "max_tokens")
    return limit


def choices_of(body: Json) -> int:
    count = body.get("n") or 1
    if not isinstance(count, int) or not 1 <= count <= CHOICES_MAX:
        raise Wrong(f"n must be from 1 to {CHOICES_MAX}", "n")
    return count


def first_tool(body: Json) -> Json | None:
    """Return the call of a function, if the client requires one or names it."""
    choice, tools = body.get("tool_choice"), body.get("tools")
    if not isinstance(tools, list) or not tools or choice in (None, "auto", "none"):
        return None
    name = choice["function"]["name"] if isinstance(choice, dict) else tools[0]["function"]["name"]
    return {"id": f"call_{name}", "type": "function", "function": {"name": name, "arguments": "{}"}}


class Answer:
    """Answer to one request: the same tokens whole or streamed; `chat` decides the shape."""

    def __init__(self, body: Json, model: str, chat: bool) -> None:
        prompt = chat_prompt(body) if chat else completion_prompt(body)
        tokens, limit = tokens_of(reply_to(prompt)), limit_of(body)
        self.chat = chat
        self.tool = first_tool(body) if chat else None
        self.tokens = [] if self.tool else tokens[:limit]
        self.finish = "tool_calls" if self.tool else "length" if len(tokens) > limit else "stop"
        self.count = choices_of(body)
        self.prompt_tokens = len(prompt.split())
        self.with_usage = bool((body.get("stream_options") or {}).get("include_usage"))
        kind = "chat.completion" if chat else "text_completion"
        self.head: Json = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{os.urandom(12).hex()}",
            "object": kind,
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": FINGERPRINT,
        }

    def usage(self) -> Json:
        completion = len(self.tokens) * self.count
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": completion,
            "total_tokens": self.prompt_tokens + completion,
        }

    def whole(self) -> Json:
        return {
            **self.head,
            "choices": [self._choice(index) for index in range(self.count)],
            "usage": self.usage(),
        }

    def _choice(self, index: int) -> Json:
        text = "".join(self.tokens)
        if not self.chat:
            return {"index": index, "text": text, "logprobs": None, "finish_reason": self.finish}
        message: Json = {"role": "assistant", "content": None if self.tool else text}
        if self.tool:
            message["tool_calls"] = [self.tool]
        return {"index": index, "message": message, "logprobs": None, "finish_reason": self.finish}

    def chunks(self) -> Iterator[Json]:
        """Yield every chunk of a stream except the closing `[DONE]`."""
        head = {**self.head, "object": "chat.completion.chunk"} if self.chat else self.head
        usage = {"usage": None} if self.with_usage else {}
        for choices in self._deltas():
            yield {**head, "choices": choices, **usage}
        if self.with_usage:
            yield {**head, "choices": [], "usage": self.usage()}

    def _deltas(self) -> Iterator[list[Json]]:
        everyone = range(self.count)
        if self.chat:
            yield [self._delta(index, {"role": "assistant", "content": ""}) for index in everyone]
        if self.tool:
            yield [
                self._delta(index, {"tool_calls": [{"index": 0, **self.tool}]})
                for index in everyone
            ]
        for token in self.tokens:
            yield [
                self._delta(index, {"content": token} if self.chat else token) for index in everyone
            ]
        yield [self._delta(index, {} if self.chat else "", self.finish) for index in everyone]

    def _delta(self, index: int, said: object, finish: str | None = None) -> Json:
        name = "delta" if self.chat else "text"
        return {"index": index, name: said, "logprobs": None, "finish_reason": finish}


def embedding(text: str, dimensions: int) -> list[float]:
    """Return numbers that depend only on the text: texts that share words are near each other."""
    digests = [hashlib.shake_256(word).digest(dimensions) for word in text.lower().encode().split()]
    numbers = [sum(byte / 127.5 - 1 for byte in column) for column in zip(*digests, strict=True)]
    numbers = numbers or [0.0] * dimensions
    length = sum(number * number for number in numbers) ** 0.5 or 1.0
    return [number / length for number in numbers]


def vector(index: int, numbers: list[float], form: object) -> Json:
    """Return an embedding as floats, or as base64 of little-endian float32, as the client asks."""
    if form != "base64":
        return {"object": "embedding", "index": index, "embedding": numbers}
    import base64
    import struct

    return {
        "object": "embedding",
        "index": index,
        "embedding": base64.b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode(),
    }
