"""The filters of the topics. Pure. Tests: tests/unit/test_ws_protocol.py."""

from typing import Any, Final

import msgspec

from libs.common.errors import Refused
from libs.common.life import job_life
from libs.common.model import JobId, NodeId
from services.api_gateway.intents.fields import check_known, check_one_of, check_range, convert
from services.api_gateway.views.interests import JobFilter

IDS_MAX: Final = 1_000
# A name in `ids`: as long as the longest id or name of a job.
ID_CHARACTERS_MAX: Final = 128
TEXT_MAX: Final = 256
RANK_MAX: Final = 1 << 20
ATTEMPT_MAX: Final = 1 << 31
OFFSET_MAX: Final = 1 << 50
STREAMS: Final = ("stdout", "stderr")
WHAT: Final = "filter."


class JobsFilter(msgspec.Struct, frozen=True):
    """The filter of `jobs`; the fields are those of GET /v1/jobs.

    `state` is one or several states. With `snapshot` false the client gets changes only.
    """

    state: str | list[str] = ""
    tenant: str = ""
    user: str = ""
    queue: str = ""
    node: str = ""
    kind: str = ""
    ids: list[str] = []
    elements: bool = False
    snapshot: bool = True

    def of_jobs(self) -> JobFilter:
        """Return the filter as the gateway applies it."""
        return JobFilter(
            states=self.states(),
            tenant=self.tenant,
            user=self.user,
            queue=self.queue,
            node=self.node,
            kind=self.kind,
            only=frozenset(map(JobId, self.ids)),
            elements=self.elements,
        )

    def states(self) -> tuple[str, ...]:
        words = self.state.split(",") if isinstance(self.state, str) else self.state
        return tuple(word for word in words if word)


class NodesFilter(msgspec.Struct, frozen=True):
    """The filter of `nodes` and of `fleet`."""

    ids: list[str] = []
    snapshot: bool = True

    def names(self) -> frozenset[NodeId]:
        return frozenset(map(NodeId, self.ids))


class EventsFilter(msgspec.Struct, frozen=True):
    """The filter of `events`; the fields are those of GET /v1/events."""

    job: str = ""
    node: str = ""
    kind: str = ""
    since: str = ""
    until: str = ""


class LogsFilter(msgspec.Struct, frozen=True):
    """The output to follow; the fields are those of GET /v1/jobs/{ref}/output.

    With `attempt` 0 it begins with the current attempt and goes on with the following ones.
    """

    job: str
    rank: int = 0
    stream: str = "stdout"
    attempt: int = 0
    offset: int = 0
    tail_bytes: int = 0


class NoFilter(msgspec.Struct, frozen=True):
    pass


Filter = JobsFilter | NodesFilter | EventsFilter | LogsFilter | NoFilter

FILTERS: Final[dict[str, type[Filter]]] = {
    "jobs": JobsFilter,
    "nodes": NodesFilter,
    "fleet": NodesFilter,
    "events": EventsFilter,
    "logs": LogsFilter,
    "metrics": NoFilter,
    "summary": NoFilter,
}


def read_filter(topic: str, fields: dict[str, Any]) -> Filter:
    """Return the filter of a topic. Raises Refused that begins with the field."""
    form = FILTERS[topic]
    check_known(
        [WHAT + name for name in fields], [WHAT + name for name in form.__struct_fields__], "field"
    )
    try:
        found = convert(fields, form)
    except Refused as error:
        raise Refused(f"{WHAT}{error}") from error
    _check_texts(found)
    if isinstance(found, JobsFilter):
        for state in found.states():
            check_one_of("filter.state", state, (*job_life.LIVE, *job_life.ENDED))
    if isinstance(found, JobsFilter | NodesFilter):
        check_range("filter.ids", len(found.ids), 0, IDS_MAX)
    if isinstance(found, LogsFilter):
        check_one_of("filter.stream", found.stream, STREAMS)
        check_range("filter.rank", found.rank, 0, RANK_MAX)
        check_range("filter.attempt", found.attempt, 0, ATTEMPT_MAX)
        check_range("filter.offset", found.offset, 0, OFFSET_MAX)
        check_range("filter.tail_bytes", found.tail_bytes, 0, OFFSET_MAX)
    return found


def _check_texts(found: Filter) -> None:
    """Raise Refused if a text is too long to be a name."""
    for name in found.__struct_fields__:
        value = getattr(found, name)
        most = ID_CHARACTERS_MAX if name == "ids" else TEXT_MAX
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str):
                check_range(f"filter.{name}", len(text), 0, most)


def names_in(found: Filter) -> int:
    """Return how many jobs or nodes the filter names."""
    return len(found.ids) if isinstance(found, JobsFilter | NodesFilter) else 0
