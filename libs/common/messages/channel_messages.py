"""What opens a channel into a running job, and what is said about it: a process beside the job, or
a connection to one of its ports.

Pure. A channel's bytes travel as a job's own output and input do (`messages.OutputAsk`,
`messages.StdinPut`), with its id on them: each direction has one message under way, and each byte
its offset, so a repeated question changes nothing.
"""

from typing import Final

import msgspec

from libs.common.model import JobId

# Of a command line; more belongs into a file, or into the standard input of a shell.
COMMAND_BYTES_MAX: Final = 4 << 10
CHUNK_BYTES: Final = 64 << 10
# Bytes under way between the gateway and its client, each way, that the other end has not taken
# yet.
WINDOW_BYTES: Final = 256 << 10
# A gateway says so often that a channel is still wanted; an agent that hears nothing for so long
# ends it.
KEEPALIVE_S: Final = 10.0
SILENCE_S: Final = 30.0


class Exec(msgspec.Struct, frozen=True, tag="exec"):
    """A command in the job's surroundings.

    Without `stdin` it reads nothing; with `tty` it has a terminal, and then one output stream.
    """

    command: tuple[str, ...]
    stdin: bool = False
    tty: bool = False
    rows: int = 24
    columns: int = 80
    term: str = ""


class Forward(msgspec.Struct, frozen=True, tag="forward"):
    """A connection to 127.0.0.1:`port` of the job's node, on which the job itself must listen."""

    port: int


class ChannelOpen(msgspec.Struct, frozen=True, tag="open"):
    """gateway -> agent. The gateway chooses the id, by chance."""

    channel: str
    job_id: JobId
    attempt: int
    wish: Exec | Forward


class ChannelSignal(msgspec.Struct, frozen=True, tag="signal"):
    """gateway -> agent: for the process of an exec and its group."""

    channel: str
    signal: int


class ChannelSize(msgspec.Struct, frozen=True, tag="size"):
    """gateway -> agent: the client's terminal has another size now."""

    channel: str
    rows: int
    columns: int


class ChannelClose(msgspec.Struct, frozen=True, tag="close"):
    """gateway -> agent: nobody is there any more."""

    channel: str


ChannelAsk = ChannelOpen | ChannelSignal | ChannelSize | ChannelClose


class ChannelAnswer(msgspec.Struct, frozen=True):
    """`error` says why it could not be done."""

    error: str = ""
