"""Messages about channels into a running job: a process beside it, or a connection to its port.

Pure. A channel's bytes travel like the job's own output and input (`messages.OutputAsk`,
`messages.StdinPut`), with the channel's id. Each direction has one outstanding message, and each
byte an offset, so a repeated message changes nothing.
"""

from typing import Final

import msgspec

from libs.common.model import JobId

# Largest command line. Use a file, or the standard input of a shell, for more.
COMMAND_BYTES_MAX: Final = 4 << 10
CHUNK_BYTES: Final = 64 << 10
# Bytes between the gateway and its client, in each direction, that are not acknowledged yet.
WINDOW_BYTES: Final = 256 << 10
# Interval at which a gateway confirms that a channel is still wanted, and the silence after which
# an agent ends it.
KEEPALIVE_S: Final = 10.0
SILENCE_S: Final = 30.0


class Exec(msgspec.Struct, frozen=True, tag="exec"):
    """A command beside the job, in its environment.

    Without `stdin` its input is empty. With `tty` it has a terminal, and only one output stream.
    """

    command: tuple[str, ...]
    stdin: bool = False
    tty: bool = False
    rows: int = 24
    columns: int = 80
    term: str = ""


class Forward(msgspec.Struct, frozen=True, tag="forward"):
    """A connection to 127.0.0.1:`port` on the job's node. The job itself must listen there."""

    port: int


class ChannelOpen(msgspec.Struct, frozen=True, tag="open"):
    """gateway -> agent: open a channel. The gateway chooses a random id."""

    channel: str
    job_id: JobId
    attempt: int
    wish: Exec | Forward


class ChannelSignal(msgspec.Struct, frozen=True, tag="signal"):
    """gateway -> agent: send a signal to the process group of an exec."""

    channel: str
    signal: int


class ChannelSize(msgspec.Struct, frozen=True, tag="size"):
    """gateway -> agent: the size of the client's terminal changed."""

    channel: str
    rows: int
    columns: int


class ChannelClose(msgspec.Struct, frozen=True, tag="close"):
    """gateway -> agent: the client has gone."""

    channel: str


ChannelAsk = ChannelOpen | ChannelSignal | ChannelSize | ChannelClose


class ChannelAnswer(msgspec.Struct, frozen=True):
    """agent -> gateway: the result of a request; `error` is why it failed."""

    error: str = ""
