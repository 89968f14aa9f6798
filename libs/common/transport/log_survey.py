"""The size of the log and the state of its servers, for operators.

`survey_nats.survey` reads them from the real servers.
"""

import msgspec


class ServerSeen(msgspec.Struct, frozen=True):
    """A server that stores the log. `leads` the stream; `current`: it has all of the log, which it
    lacks `lag` commits of.
    """

    name: str
    leads: bool
    current: bool
    online: bool
    lag: int


class LogSurvey(msgspec.Struct, frozen=True):
    """The log now. `bytes_max` is its bound, 0 if it has none. `first_ns` is the time of the oldest
    commit that it holds; 0 for an empty log.
    """

    last: int
    commits: int
    bytes: int
    bytes_max: int
    first_ns: int
    servers: tuple[ServerSeen, ...] = ()
