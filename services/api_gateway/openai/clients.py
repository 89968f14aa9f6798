"""Recognises requests of OpenAI's clients.

They read an error only in OpenAI's shape, on every route.

Pure. OpenAI's own libraries name themselves in the header User-Agent, and those generated today in
X-Stainless-Lang too. A request without either counts when its path belongs to OpenAI's API and not
to Muster's. Tests: tests/integration/test_openai_shapes.py.
"""

from typing import Final

from starlette.types import Scope

from services.api_gateway.openai.routes import ROUTES

STAINLESS: Final = b"x-stainless-lang"
NAME: Final = b"openai"
# Paths after /v1/ in OpenAI's API that Muster does not have.
FOREIGN: Final = frozenset(
    (
        *(
            "assistants",
            "audio",
            "batches",
            "chat",
            "chatkit",
            "completions",
            "containers",
            "conversations",
            "edits",
            "embeddings",
            "engines",
        ),
        *(
            "evals",
            "files",
            "fine-tunes",
            "fine_tuning",
            "images",
            "moderations",
            "organization",
            "projects",
            "realtime",
            "responses",
        ),
        *("threads", "vector_stores", "videos", "models"),
    )
)


def is_openai(scope: Scope) -> bool:
    """Return whether the client reads errors in OpenAI's shape."""
    if scope["path"] in ROUTES:
        return True
    parts = scope["path"].split("/", 3)
    if len(parts) > 2 and parts[1] == "v1" and parts[2] in FOREIGN:
        return True
    return any(
        name == STAINLESS or (name == b"user-agent" and NAME in value.lower())
        for name, value in scope["headers"]
    )
