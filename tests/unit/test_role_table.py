"""The table of roles: every route has its row, and what a row says is what is asked of
one thing.
"""

import asyncio

import pytest
from starlette.requests import Request
from starlette.routing import Route

from libs.common.process.clock import SystemClock
from libs.common.settings.settings import Settings
from libs.common.transport.bus_memory import MemoryBus
from libs.common.transport.kv import MemoryOutputs
from libs.common.transport.log_memory import MemoryLog
from libs.common.transport.snapshot_store import MemorySnapshots
from services.api_gateway.access import roles
from services.api_gateway.access.roles import ROLES, ROUTES, Principal, Row
from services.api_gateway.gateway import Gateway
from services.api_gateway.http.app import ROUTERS
from services.api_gateway.openai import app as openai
from services.api_gateway.openai.routes import ROUTES as ROUTED
from services.api_gateway.problems import Denied

ADA = Principal("k", "physics", "ada", "member")


def declared() -> set[tuple[str, str]]:
    """The routes under a key that functions of the routers answer."""
    found = {(route.method, route.path) for router in ROUTERS for route in router.routes}
    return {(method, path) for method, path in found if path not in roles.PUBLIC}


def served() -> set[tuple[str, str]]:
    """Every route under a key that this gateway answers."""
    return (
        declared()
        | {("POST", path) for path in ROUTED}
        | {("GET", openai.MODELS), ("GET", openai.MODEL)}
    )


def test_every_route_has_a_row_and_every_row_a_route() -> None:
    assert served() == set(ROUTES)


def test_a_route_without_a_row_is_refused_to_everyone() -> None:
    assert {roles.reach(role, "GET", "/v1/new") for role in ROLES} == {roles.NOTHING}
    assert all(roles.denial(Principal("k", "t", "u", role), "GET", "/v1/new") for role in ROLES)


def test_a_role_that_is_not_known_reaches_nothing() -> None:
    assert {
        roles.reach(role, *route) for route in ROUTES for role in ("", "root", "_make", "count")
    } == {roles.NOTHING}


@pytest.mark.parametrize("row", ROUTES.values())
def test_no_role_reaches_less_than_the_one_below_it(row: Row) -> None:
    assert list(row) == sorted(row)


def test_a_member_changes_only_their_own() -> None:
    roles.check_change(ADA, "job j", "physics", "ada")
    for tenant, user in (("physics", "bob"), ("default", "ada"), ("physics", "")):
        with pytest.raises(Denied):
            roles.check_change(ADA, "job j", tenant, user)
    roles.check_change(Principal("k", "default", "root", "operator"), "job j", "physics", "ada")


def test_only_a_key_that_sees_all_tenants_acts_for_another_user() -> None:
    assert [roles.acting_user(ADA, name) for name in ("", "ada")] == ["ada", "ada"]
    with pytest.raises(Denied):
        roles.acting_user(ADA, "bob")
    assert roles.acting_user(Principal("k", "default", "root", "operator"), "bob") == "bob"


def test_the_app_itself_asks_the_table_before_any_function_of_a_route() -> None:
    """Not each file of routes, which could forget it."""
    from services.api_gateway.http.app import create_routes

    gateway = Gateway(
        log=MemoryLog(),
        bus=MemoryBus(),
        clock=SystemClock(),
        settings=Settings(),
        outputs=MemoryOutputs(),
        store=MemorySnapshots(),
    )
    asked = set()
    for route in create_routes(gateway).routes:
        assert isinstance(route, Route)
        method, path = min(route.methods or ()), route.path
        if (method, path) not in declared():
            continue
        stranger = Principal("k", "physics", "ada", "no-role")
        scope = {"type": "http", "method": method, "route": route, "principal": stranger}
        with pytest.raises(Denied):
            asyncio.run(route.endpoint(Request(scope)))
        asked.add((method, path))
    assert asked == declared()
