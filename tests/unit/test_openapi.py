"""The OpenAPI document says every route with typed bodies and answers, and nothing that is not
there.
"""

from typing import Any

import msgspec
import pytest

from services.api_gateway.access import roles
from services.api_gateway.http import client_models
from services.api_gateway.http.answers import ANSWERS
from services.api_gateway.intents import job_intents
from services.audit.export.events import CloudEvent

# What needs no key.
OPEN = {("GET", path) for path in (*roles.PROBES, "/join/ca")} | {("POST", "/join")}
OPEN |= {(method, "/v1/session") for method in ("GET", "POST", "DELETE")}
OPEN |= {("GET", "/v1/session/oidc"), ("GET", "/v1/session/oidc/callback")}
OPEN |= {("POST", "/v1/session/device"), ("POST", "/v1/session/device/token")}


@pytest.fixture
async def document() -> dict[str, Any]:
    return client_models.description()


def operations(document: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (method.upper(), path): each
        for path, methods in document["paths"].items()
        for method, each in methods.items()
    }


def references(value: Any) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*map(references, value.values()))
    return set().union(*map(references, value)) if isinstance(value, list) else set()


def test_every_route_has_a_row_of_answers_and_every_row_a_route() -> None:
    assert set(ANSWERS) == set(roles.ROUTES) | OPEN


async def test_every_route_is_in_the_document_with_its_answers_and_problems(
    document: dict[str, Any],
) -> None:
    found = operations(document)
    assert set(found) == set(ANSWERS)
    for route, operation in found.items():
        assert {str(status) for status in ANSWERS[route].statuses} <= set(operation["responses"]), (
            route
        )
        assert bool(operation["security"]) == (route[1] not in roles.PUBLIC), route
        assert route[1] in roles.PROBES or "401" in operation["responses"], route


async def test_no_field_of_a_body_is_without_a_type(document: dict[str, Any]) -> None:
    for route, operation in operations(document).items():
        for media in operation.get("requestBody", {}).get("content", {}).values():
            untyped = [
                name for name, schema in media["schema"].get("properties", {}).items() if not schema
            ]
            assert untyped == [], route


async def test_no_reference_leads_nowhere(document: dict[str, Any]) -> None:
    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert references(document) - known == set()


async def test_the_bounds_of_a_job_are_those_that_are_enforced(document: dict[str, Any]) -> None:
    body = document["paths"]["/v1/jobs"]["post"]["requestBody"]["content"]["application/json"][
        "schema"
    ]
    assert set(body["properties"]) == set(job_intents.SUBMIT_FIELDS)
    assert not body.get("required"), "a job with an image may leave the command to it"
    for name, low, high in job_intents.RANGES:
        schema = body["properties"][name]
        assert "anyOf" in schema or (schema["minimum"], schema["maximum"]) == (low, high), name


async def test_events_of_the_audit_are_described_as_the_audit_makes_them(
    document: dict[str, Any],
) -> None:
    described = document["components"]["schemas"]["CloudEvent"]
    assert set(described["properties"]) == set(
        msgspec.json.schema(CloudEvent)["$defs"]["CloudEvent"]["properties"]
    )
    optional = {
        field.name for field in msgspec.structs.fields(CloudEvent) if "Unset" in str(field.type)
    }
    assert set(described["required"]) == set(described["properties"]) - optional
    content = operations(document)[("GET", "/v1/audit/events")]["responses"]["200"]["content"]
    assert content["application/cloudevents-batch+json"]["schema"]["items"] == {
        "$ref": "#/components/schemas/CloudEvent"
    }
