"""All of schemathesis' checks and phases over an OpenAPI document, with one key, against a running
gateway.

Used by test_openapi_conformance.py.
"""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from time import monotonic
from typing import Any, Final, NamedTuple

import pytest
import requests
import schemathesis
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import Status, events, from_schema
from schemathesis.engine.recorder import ScenarioRecorder
from urllib3.exceptions import HTTPError

CALL_S: Final = 20.0
# A stream that does not end by itself is read until it is silent for this long.
SILENCE_S: Final = 0.25
STREAM_S: Final = 0.5
STREAM_TYPES: Final = ("text/event-stream", "application/x-ndjson", "application/octet-stream")


class Fault(NamedTuple):
    """One check that failed: on which operation, what it says, the answer's status, and the request
    that shows it.
    """

    check: str
    operation: str
    text: str
    status: int
    request: str


def faults(
    document: Mapping[str, Any], url: str, headers: Mapping[str, str], told: Mapping[str, Any]
) -> Iterator[Fault]:
    """Each fault once per check, operation and status.

    `told`: schemathesis' own configuration beside that of every run.
    """
    settings = {
        "headers": dict(headers),
        "request-timeout": CALL_S,
        "continue-on-failure": True,
        "suppress-health-check": ["all"],
        "cache": {"enabled": False},
        **told,
    }
    schema = schemathesis.openapi.from_dict(
        deepcopy(dict(document)), config=SchemathesisConfig.from_dict(settings)
    )
    schema.config.update(base_url=url)
    seen = set()
    for event in from_schema(schema).execute():
        if isinstance(event, events.NonFatalError):
            yield Fault(
                check="error", operation=event.label, text=str(event.value), status=0, request=""
            )
        if isinstance(event, events.FatalError):
            yield Fault(
                check="error", operation="", text=str(event.exception), status=0, request=""
            )
        if isinstance(event, events.ScenarioFinished):
            for fault in _found(event.recorder):
                if (mark := (fault.check, fault.operation, fault.status)) not in seen:
                    seen.add(mark)
                    yield fault


def _found(recorder: ScenarioRecorder) -> Iterator[Fault]:
    """The checks that failed in one scenario."""
    for case_id, checks in recorder.checks.items():
        for check in checks:
            if check.status == Status.FAILURE and check.failure_info is not None:
                response = recorder.find_response(case_id=case_id)
                status, body = (
                    (response.status_code, response.content[:400])
                    if response is not None
                    else (0, b"")
                )
                label = recorder.cases[case_id].value.operation.label
                shown = f"{check.failure_info.code_sample[:900]} -> {body!r}"
                yield Fault(
                    check=check.name,
                    operation=label,
                    text=str(check.failure_info.failure)[:600],
                    status=status,
                    request=shown,
                )


def bound_streams(patch: pytest.MonkeyPatch) -> None:
    """Let `requests` read a body that does not end only for a short time."""
    plain = requests.Session.request

    def request(self: requests.Session, *arguments: Any, **options: Any) -> requests.Response:
        response = plain(self, *arguments, **(options | {"stream": True}))
        kind = response.headers.get("content-type", "").partition(";")[0]
        if (
            kind in STREAM_TYPES
            and "content-length" not in response.headers
            and not response._content_consumed
        ):
            response._content = b"".join(_pieces(response))
            response.raw.close()
            response._content_consumed = True
        return response

    patch.setattr(requests.Session, "request", request)


def _pieces(response: requests.Response) -> Iterator[bytes]:
    until = monotonic() + STREAM_S
    response.raw.connection.sock.settimeout(SILENCE_S)
    try:
        while monotonic() < until and (piece := response.raw.read1(65_536)):
            yield piece
    except (OSError, HTTPError):
        return
