"""The typed errors that cross an edge of the system.

Everything else is a bug (assert, die, replay) or a fact. The text of each error says what was
tried, on what, and what to do; `main` functions print it as one line and exit with `exit_code`.
"""


class MusterError(Exception):
    """A fault of the world that a person can act on. `exit_code` is what a command exits with."""

    exit_code = 1


class Unavailable(MusterError):
    """The log or a service did not answer in time; nothing is known to have been changed.

    Try again.
    """


class Fenced(MusterError):
    """Another writer has written on this writer's subject: this one must drop its state, replay and
    stand by.
    """


class Corrupt(MusterError):
    """A record is not what it must be: a gap, a broken chain, an unreadable file.

    Needs a person.
    """

    exit_code = 3


class Trimmed(MusterError):
    """The log no longer holds what a reader needs next: start the process again, it begins from a
    snapshot.
    """


class TooNew(MusterError):
    """A record needs a newer reader (`min_reader`). Upgrade this process, then start it again."""

    exit_code = 4


class Refused(MusterError):
    """The request is not valid; the text names the field and the remedy."""

    exit_code = 2
