"""Messages of gRPC methods that have no JSON object in REST: pieces of streams, channels, models.

Their docstrings are comments in proto/muster/v1. As in all generated messages a scalar that a
request leaves out is not sent to the route. Tests: tests/unit/test_api_description.py.
"""

from typing import Any

import msgspec

from services.api_gateway.views.jobs import JobShown
from services.api_gateway.views.nodes import NodeShown


class Done(msgspec.Struct):
    """The request was carried out, and there is nothing to return."""


class JobFrame(msgspec.Struct):
    """One piece of output, or a change of the job's state.

    Output has `stream`, `offset` and `data`. The last frame has `exit_code`, if the job has one.
    """

    attempt: int = 0
    stream: str | None = None
    offset: int | None = None
    data: bytes | None = None
    state: str | None = None
    reason: str | None = None
    node_ids: list[str] = []
    exit_code: int | None = None


class BytesPiece(msgspec.Struct):
    """The next bytes of an output or of a file."""

    data: bytes


class UploadPiece(msgspec.Struct):
    """The next bytes of an archive. The first piece names the archive's SHA-256."""

    sha256: str = ""
    data: bytes = b""


class TerminalSize(msgspec.Struct):
    """The size of a terminal in characters."""

    rows: int
    columns: int


class ExecStart(msgspec.Struct):
    """The command to run beside a job; `node` is empty for the node of rank 0.

    Without `stdin` its input is empty. With `tty` it has a terminal, and only one output stream.
    """

    ref: str
    command: list[str]
    node: str = ""
    stdin: bool = False
    tty: bool = False
    rows: int = 24
    columns: int = 80
    term: str = ""


class ExecInput(msgspec.Struct):
    """The first message has `start`, each later one of the other fields."""

    start: ExecStart | None = None
    data: bytes | None = None
    eof: bool | None = None
    signal: int | None = None
    size: TerminalSize | None = None


class ExecOutput(msgspec.Struct):
    """Output, or the end of the command: its exit code, or `error` if it could not be followed.

    `detail` says more about the end.
    """

    stdout: bytes | None = None
    stderr: bytes | None = None
    exit_code: int | None = None
    detail: str | None = None
    error: str | None = None


class ForwardStart(msgspec.Struct):
    """A port on which a job listens; `node` is empty for the node of rank 0."""

    ref: str
    port: int
    node: str = ""


class ForwardPiece(msgspec.Struct):
    """Bytes in either direction. The client's first message has `start`; `eof` ends a direction.

    `error` says why the connection to the port ended early.
    """

    start: ForwardStart | None = None
    data: bytes | None = None
    eof: bool | None = None
    error: str | None = None


class Change(msgspec.Struct):
    """A change of a job or a node. `event` is job, node or ready, after which all is up to date.

    A client that continues after `seq` misses nothing.
    """

    event: str
    seq: int
    job: JobShown | None = None
    node: NodeShown | None = None


class ChatMessage(msgspec.Struct):
    """A message of a conversation."""

    role: str
    content: str


class ChatRequest(msgspec.Struct):
    """A request to a model. `more` holds all further members of OpenAI's body by their names."""

    model: str
    messages: list[ChatMessage]
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: list[str] = []
    user: str | None = None
    more: dict[str, Any] = {}


class CompletionRequest(msgspec.Struct):
    """A text to continue. `more` holds all further members of OpenAI's body by their names."""

    model: str
    prompt: str
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: list[str] = []
    user: str | None = None
    more: dict[str, Any] = {}


class EmbeddingRequest(msgspec.Struct):
    """Texts to embed. `more` holds all further members of OpenAI's body by their names."""

    model: str
    input: list[str]
    user: str | None = None
    more: dict[str, Any] = {}


class ChatChoice(msgspec.Struct):
    """One answer. A streamed piece has `delta` instead of `message`."""

    index: int = 0
    message: ChatMessage | None = None
    delta: ChatMessage | None = None
    finish_reason: str | None = None


class CompletionChoice(msgspec.Struct):
    """One continuation, or the next piece of it."""

    index: int = 0
    text: str = ""
    finish_reason: str | None = None


class TokenCount(msgspec.Struct):
    """Tokens of a request and of its answer."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0


class ChatAnswer(msgspec.Struct):
    """An answer, or a piece of a streamed one. `json` is exactly what the model's server sent."""

    id: str = ""
    model: str = ""
    created: int = 0
    choices: list[ChatChoice] = []
    usage: TokenCount | None = None
    json: bytes = b""


class CompletionAnswer(msgspec.Struct):
    """A continuation, or a piece of a streamed one. `json` is what the model's server sent."""

    id: str = ""
    model: str = ""
    created: int = 0
    choices: list[CompletionChoice] = []
    usage: TokenCount | None = None
    json: bytes = b""


class Embedding(msgspec.Struct):
    """The vector of one text."""

    index: int = 0
    embedding: list[float] = []


class EmbeddingAnswer(msgspec.Struct):
    """The vectors of the texts. `json` is exactly what the model's server sent."""

    model: str = ""
    data: list[Embedding] = []
    usage: TokenCount | None = None
    json: bytes = b""


class ModelCall(msgspec.Struct):
    """A piece of a request to any endpoint of models, for example /v1/rerank.

    The first piece names the path and the media type (JSON if it is empty). The pieces' `data`
    together are the body.
    """

    path: str = ""
    content_type: str = ""
    data: bytes = b""


class ModelBytes(msgspec.Struct):
    """The next bytes of an endpoint's answer. The first piece has the media type."""

    content_type: str = ""
    data: bytes = b""
