"""The typed errors that cross an edge of the system.

Any other error is a bug (the process exits and replays) or a fact. The text of each error says what
failed, on what, and what to do. `main` functions print it as one line and exit with `exit_code`.
"""


class MusterError(Exception):
    """A fault that a person can repair. A command exits with its `exit_code`."""

    exit_code = 1


class Unavailable(MusterError):
    """The log or a service did not answer in time. It is unknown whether anything changed.

    Try again.
    """


class NotRecorded(Unavailable):
    """The log certainly does not have these facts, because they were never sent to it."""


class NoListener(Unavailable):
    """No process listens on the subject of a request: the one that did has ended or is cut off."""


class Fenced(MusterError):
    """Another writer appended to this writer's subject.

    This process must drop its state, replay the log and stand by.
    """


class Corrupt(MusterError):
    """A record is damaged: a gap, a broken chain, an unreadable file. A person must repair it."""

    exit_code = 3


class Trimmed(MusterError):
    """The log no longer holds the next commit that a reader needs.

    Restart the process: it begins from a snapshot.
    """


class TooNew(MusterError):
    """A record needs a newer reader (`min_reader`). Upgrade this process and restart it."""

    exit_code = 4


class Refused(MusterError):
    """The request is not valid. The text names the field and the remedy."""

    exit_code = 2


class Diverged(MusterError):
    """This process folded the log to another state than the leader.

    `parts` of the state after commit `seq` differ. A person must report it: it is a bug or a broken
    machine.
    """

    exit_code = 5

    def __init__(self, text: str, seq: int, parts: tuple[str, ...]) -> None:
        super().__init__(text)
        self.seq = seq
        self.parts = parts
