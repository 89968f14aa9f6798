"""/openapi.json, and /docs, a page that shows it.

The page's script comes from a public CDN. It must not act with the session of the browser that
opens the page, so the page has no origin of its own (CSP `sandbox`): its requests carry no cookie,
and only the description can be read. Tests: tests/attack/test_foreign_pages.py.
"""

from collections.abc import Callable
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from services.api_gateway.http.route_description import TITLE

DESCRIPTION: Final = "/openapi.json"
PAGE: Final = "/docs"
SANDBOX: Final = {"content-security-policy": "sandbox allow-scripts"}
# The page reads the description from outside the gateway's origin; it holds nothing private.
READABLE: Final = {"access-control-allow-origin": "*"}


def routes(description: Callable[[], dict[str, Any]]) -> list[Route]:
    """Return both routes; `description` returns the document."""

    async def document(request: Request) -> Response:
        return JSONResponse(description(), headers=READABLE)

    async def page(request: Request) -> Response:
        from fastapi.openapi.docs import get_swagger_ui_html

        found = get_swagger_ui_html(openapi_url=DESCRIPTION, title=TITLE)
        found.headers.update(SANDBOX)
        return found

    return [Route(DESCRIPTION, document), Route(PAGE, page)]
