"""The endpoints of model servers that pass through the gateway: one table.

Pure. What differs between them is here; everything else is the same for all. The paths are those of
OpenAI's API and, for /v1/rerank, /v1/score, /tokenize and /detokenize, those of vLLM. Tests:
tests/unit/test_openai_routes.py.
"""

import re
from typing import Final, NamedTuple

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
EMBEDDINGS: Final = "/v1/embeddings"
RESPONSES: Final = "/v1/responses"
MAX_TOKENS: Final = "max_tokens"


class Route(NamedTuple):
    """One endpoint.

    `bound` is the field that limits the tokens of an answer; empty if the answer has none that a
    field limits. `other_bound` is a second field with this meaning: servers ignore all other
    fields, so only these two count. `takes_form`: the body may be multipart/form-data. `ends` finds
    the event after which a stream is complete, for streams that do not end with [DONE].
    `is_stateful`: the server may store the answer or call tools, so the request never goes to two
    replicas at once.
    """

    bound: str = ""
    takes_form: bool = False
    ends: re.Pattern[bytes] | None = None
    is_stateful: bool = False
    other_bound: str = ""

    @property
    def bounds(self) -> list[str]:
        """The fields that limit the tokens of an answer."""
        return [name for name in (self.bound, self.other_bound) if name]

    @property
    def counts_on_request(self) -> bool:
        """True if a stream has its usage only if `stream_options` asks for it."""
        return self.bound == MAX_TOKENS


def _event(kind: str) -> re.Pattern[bytes]:
    """Return a pattern of the event's type.

    Within a JSON string the quotation marks are escaped, so no generated text matches.
    """
    return re.compile(rb'"type"\s*:\s*"' + kind.encode() + rb'"')


_TRANSCRIBED: Final = Route(takes_form=True, ends=_event(r"transcript\.text\.done"))
_DRAWN: Final = Route(takes_form=True, ends=_event(r"image_(generation|edit)\.completed"))

ROUTES: Final[dict[str, Route]] = {
    CHAT: Route(MAX_TOKENS, other_bound="max_completion_tokens"),
    COMPLETIONS: Route(MAX_TOKENS),
    EMBEDDINGS: Route(),
    RESPONSES: Route(
        "max_output_tokens",
        ends=_event(r"response\.(completed|incomplete|failed)"),
        is_stateful=True,
    ),
    "/v1/audio/speech": Route(ends=_event(r"speech\.audio\.done")),
    "/v1/audio/transcriptions": _TRANSCRIBED,
    "/v1/audio/translations": _TRANSCRIBED,
    "/v1/images/generations": _DRAWN,
    "/v1/images/edits": _DRAWN,
    "/v1/images/variations": _DRAWN,
    "/v1/rerank": Route(),
    "/v1/score": Route(),
    "/tokenize": Route(),
    "/detokenize": Route(),
}
