"""The OpenAPI description of the declared routes, by FastAPI, which is imported for it alone.

Tests: tests/unit/test_openapi.py.
"""

from collections.abc import Iterable
from typing import Any

from services.api_gateway.http.routing import APIRouter

TITLE = "Muster"
VERSION = "1"
DESCRIPTION = "A GPU cluster manager"


def described(routers: Iterable[APIRouter]) -> dict[str, Any]:
    """Return FastAPI's document for the routes, in their order."""
    from fastapi import FastAPI
    from fastapi.openapi.utils import get_openapi

    app = FastAPI(openapi_url=None)
    for router in routers:
        for each in router.routes:
            app.add_api_route(
                each.path,
                each.function,
                methods=[each.method],
                tags=list(each.tags),
                status_code=each.status_code,
                openapi_extra=dict(each.openapi_extra) if each.openapi_extra else None,
            )
    return get_openapi(title=TITLE, version=VERSION, description=DESCRIPTION, routes=app.routes)
