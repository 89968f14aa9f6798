"""Query strings and bodies as typed values, and answers as JSON, the same for every route.

msgspec reads and writes them: a validating framework model for each row of a list would cost more
than the rest of a request.
"""

import asyncio
from collections.abc import Callable, Iterable
from functools import cache
from itertools import islice
from typing import Any, Final, TypeVar

import msgspec
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from libs.common import arrays
from libs.common.errors import Refused
from libs.common.facts import AnyFact
from libs.common.model import JobId
from libs.common.state.cluster import Job
from services.api_gateway.access import roles
from services.api_gateway.access.roles import Principal
from services.api_gateway.gateway import Gateway
from services.api_gateway.intents.fields import (
    UNREADABLE,
    check_known,
    check_range,
    convert,
    names_of,
)
from services.api_gateway.moments.moment import Moment
from services.api_gateway.problems import Problem

LIST_SLICE: Final = 50
# The largest whole number that JSON readers agree on; no log has so many commits.
SEQ_MAX: Final = 1 << 53
# A number with so many digits is above SEQ_MAX. Python refuses to read one with thousands.
DIGITS_MAX: Final = 19
# Rows in one answer.
PAGE_MAX: Final = 10_000
ROWS_MAX: Final = 1_000
# Headers of a stream: a proxy must not hold back its bytes.
UNBUFFERED: Final = {"cache-control": "no-store", "x-accel-buffering": "no"}

Q = TypeVar("Q", bound="Query")
M = TypeVar("M", bound="MomentQuery | MomentPage")
T = TypeVar("T")

_encode: Final = msgspec.json.Encoder().encode


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of every route. The state that answers it includes commit `min_seq`."""

    min_seq: int = 0


class PageQuery(Query, frozen=True):
    """A part of a list: at most `limit` rows, after the row that the last answer's `next` named."""

    limit: int = PAGE_MAX
    after: str = ""


class MomentQuery(Query, frozen=True):
    """The query of a read that may be of a past moment.

    `at`: a commit's sequence, a time in RFC 3339, or a duration before now; empty or 0: now.
    """

    at: str = ""


class MomentPage(PageQuery, frozen=True):
    """A part of a list, as of now or of a past moment; see `MomentQuery`."""

    at: str = ""


def page_of(
    values: Iterable[T],
    name_of: Callable[[T], str],
    query: PageQuery,
    wanted: Callable[[T], bool] = lambda _: True,
) -> tuple[list[T], str | None]:
    """Return the page, and the name of its last row if more rows follow.

    Raises Refused if the row `after` is gone.
    """
    check_range("limit", query.limit, 1, PAGE_MAX)
    rest = iter(values)
    if query.after and not any(name_of(value) == query.after for value in rest):
        raise Refused(
            f"after: {query.after[:64]!r} is not in the list any more: read the list from its "
            "beginning"
        )
    page = list(islice(filter(wanted, rest), query.limit + 1))
    more = len(page) > query.limit
    return page[: query.limit], name_of(page[query.limit - 1]) if more else None


def gateway_of(request: Request) -> Gateway:
    """Return the gateway of this app."""
    gateway: Gateway = request.app.state.gateway
    return gateway


def principal_of(request: Request) -> Principal:
    """Return the principal that the edge has authenticated."""
    principal: Principal = request.scope["principal"]
    return principal


def job_of(request: Request, ref: str) -> Job:
    """Return the job if the principal may see it. Raises Problem 404 or 409."""
    return gateway_of(request).lookup.job(ref, principal_of(request))


def job_to_change(request: Request, ref: str) -> Job:
    """Return the job if the principal may change it.

    Raises Problem 404 or 409, and Denied 403 for another user's job.
    """
    job = job_of(request, ref)
    roles.check_change(principal_of(request), f"job {job.job_id}", job.tenant, job.user)
    return job


def job_to_cancel(request: Request, ref: str) -> tuple[Job, JobId]:
    """Return the job to cancel and "", or the array and the id of an element that has not begun.

    Raises as `job_to_change`.
    """
    gateway, principal = gateway_of(request), principal_of(request)
    array, job_id = gateway.lookup.element(ref, principal) or (None, JobId(""))
    if (
        array is None
        or array.spec.array is None
        or array.spec.array.short
        or array.elements is None
        or job_id in gateway.cluster.jobs
    ):
        return job_to_change(request, ref), JobId("")
    if arrays.place_of(array.spec.array, arrays.element_of(job_id)[1]) < array.elements.begun:
        return job_to_change(request, ref), JobId("")  # raises 404
    roles.check_change(principal, f"job {job_id}", array.tenant, array.user)
    return array, job_id


async def settled(request: Request, kind: type[Q]) -> tuple[Gateway, Q]:
    """Return the gateway and the query string, after `min_seq` is folded.

    Raises Refused or Problem 503.
    """
    query = read(request, kind)
    gateway = gateway_of(request)
    if query.min_seq > gateway.cluster.seq:
        await gateway.settle(query.min_seq)
    return gateway, query


async def settled_for_change(request: Request) -> None:
    """Wait until the `min_seq` of a change is folded, before its route looks up what to change.

    A wrong value is left to the route, which refuses it. Requests without a key do not wait. Raises
    Refused or Problem 503.
    """
    text = request.query_params.get("min_seq", "")
    if not text or request.method == "GET" or request.scope.get("principal") is None:
        return
    if len(text) >= DIGITS_MAX:
        return
    gateway = gateway_of(request)
    if text.isascii() and text.isdigit() and gateway.cluster.seq < (seq := int(text)) <= SEQ_MAX:
        await gateway.settle(seq)


async def viewed(request: Request, kind: type[M]) -> tuple[Moment, M]:
    """Return the state that the request asks for, and the query string.

    It is the present state, after `min_seq` is folded, or that of the moment `at`. Raises Refused
    or Problem 410, 429 or 503.
    """
    gateway, query = await settled(request, kind)
    if query.at in ("", "0"):
        return gateway.present, query
    return await gateway.moments.at(query.at, principal_of(request).tenant), query


def gateway_without_query(request: Request) -> Gateway:
    """Return the gateway of a change without query parameters besides `min_seq`.

    Raises Refused if there are others.
    """
    read(request, Query)
    return gateway_of(request)


def read(request: HTTPConnection, kind: type[Q]) -> Q:
    """Return the query string. Raises Refused naming an unknown or wrong parameter."""
    values: dict[str, Any] = {}
    for name, value in request.query_params.multi_items():
        if name == "label":
            values.setdefault("label", []).append(value)
        else:
            values[name] = value
    check_known(values, names_of(kind), "query parameter")
    query = convert(values, kind, strict=False)
    for name, low, high in _ranges(kind):
        check_range(name, getattr(query, name), low, high)
    return query


@cache
def _ranges(kind: type[msgspec.Struct]) -> tuple[tuple[str, int, int], ...]:
    """Return the numbers of a query, each with its bounds."""
    return tuple(
        (field.name, *bounds_of(field.name, field.default))
        for field in msgspec.structs.fields(kind)
        if field.type is int
    )


def bounds_of(name: str, default: int) -> tuple[int, int]:
    """Return the least and the greatest accepted value of a whole number in a query string."""
    return (1, max(ROWS_MAX, default)) if name == "limit" else (0, SEQ_MAX)


def last_event_id(request: Request) -> int | None:
    """Return the id after which a client of server-sent events continues; None if it begins."""
    last = request.headers.get("last-event-id", "")
    return int(last) if last.isascii() and last.isdigit() and len(last) < DIGITS_MAX else None


async def body_of(request: Request) -> object:
    """Return the JSON body; None when it is empty.

    Raises Problem 400 for malformed JSON, and Refused for `null`.
    """
    data = await request.body()
    if not data:
        return None
    try:
        body = _whole_numbers(msgspec.json.decode(data))
    except UNREADABLE as error:
        raise Problem(400, f"the request body is not valid JSON: {error}") from error
    if body is None:
        raise Refused("the request body is null: send a JSON object, or no body if none is needed")
    return body


def _whole_numbers(value: Any) -> Any:  # noqa: ANN401  JSON
    """Return the value with 2 for 2.0, because JSON Schema counts both as integers."""
    if isinstance(value, dict):
        return {name: _whole_numbers(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_whole_numbers(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


async def signed_body_of(request: Request) -> object:
    """Return the JSON body with `user`: the principal, or a user for whom it may act.

    Raises Denied 403.
    """
    return signed(principal_of(request), await body_of(request))


def signed(principal: Principal, body: object) -> object:
    """Return the body with `user`, as `signed_body_of` does for a request."""
    fields = {} if body is None else body
    if isinstance(fields, dict) and "user_id" in fields:
        if "user" in fields:
            raise Refused("user_id: user is given too, and both mean the same: give one of them")
        fields = {"user" if name == "user_id" else name: value for name, value in fields.items()}
    named = fields.get("user", "") if isinstance(fields, dict) else None
    if not isinstance(fields, dict) or not isinstance(named, str):
        return fields if isinstance(fields, dict) else body
    return {**fields, "user": roles.acting_user(principal, named)}


async def on_record(request: Request, fact: AnyFact, status: int = 200) -> None:
    """Record a change together with its access record.

    Raises as `Gateway.record`.
    """
    gateway, scope = gateway_of(request), request.scope
    noted = gateway.access.beside(scope, principal_of(request), scope["route"].path, status)
    await gateway.record(fact, noted)
    scope["noted"] = True


def answer(value: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(
        _encode(value), status_code=status, media_type="application/json", headers=headers
    )


async def answer_list(
    name: str,
    values: Iterable[msgspec.Struct],
    more: dict[str, object],
    slice_rows: int = LIST_SLICE,
) -> Response:
    """Answer with a list under its name and the members `more`.

    The list is encoded in slices, so that other requests do not wait.
    """
    pieces = []
    rows = iter(values)
    while part := list(islice(rows, slice_rows)):
        pieces.append(_encode(part)[1:-1])
        await asyncio.sleep(0)
    body = b'{"%s":[%s],%s' % (name.encode(), b",".join(pieces), _encode(more)[1:])
    return Response(body, media_type="application/json")


async def answer_page(
    name: str,
    values: Iterable[T],
    query: PageQuery,
    seq: int,
    name_of: Callable[[T], str],
    show: Callable[[T], msgspec.Struct],
    wanted: Callable[[T], bool] = lambda _: True,
    slice_rows: int = LIST_SLICE,
) -> Response:
    """Answer with the requested page, as of `seq`. Raises Refused if the row `after` is gone."""
    page, following = page_of(values, name_of, query, wanted)
    return await answer_list(name, map(show, page), {"next": following, "seq": seq}, slice_rows)


def documented(kind: type[Query] | None = None, body: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the OpenAPI description of a query struct and of a body's fields."""
    extra: dict[str, Any] = {}
    if kind is not None:
        extra["parameters"] = [_parameter(field) for field in msgspec.structs.fields(kind)]
    if body:
        schema = {
            "type": "object",
            "properties": {name: {} for name in body},
            "additionalProperties": False,
        }
        extra["requestBody"] = {"content": {"application/json": {"schema": schema}}}
    return extra


def _parameter(field: msgspec.structs.FieldInfo) -> dict[str, Any]:
    schema = msgspec.json.schema(field.type)
    if isinstance(field.default, str | int | bool):
        schema = {**schema, "default": field.default}
    return {"name": field.name, "in": "query", "required": False, "schema": schema}
