"""/openapi.json, and /docs, a page that shows it.

The page's script comes from a public CDN. It must not act with the session of the browser that
opens the page, so the page has no origin of its own (CSP `sandbox`): its requests carry no cookie,
and only the description can be read. Tests: tests/attack/test_foreign_pages.py.
"""

from typing import Final

from fastapi import FastAPI, Request
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.responses import JSONResponse, Response

DESCRIPTION: Final = "/openapi.json"
PAGE: Final = "/docs"
SANDBOX: Final = {"content-security-policy": "sandbox allow-scripts"}
# The page reads the description from outside the gateway's origin; it holds nothing private.
READABLE: Final = {"access-control-allow-origin": "*"}


def add(app: FastAPI) -> None:
    """Add both routes to the app."""

    async def description(request: Request) -> Response:
        return JSONResponse(app.openapi(), headers=READABLE)

    async def page(request: Request) -> Response:
        found = get_swagger_ui_html(openapi_url=DESCRIPTION, title=app.title)
        found.headers.update(SANDBOX)
        return found

    app.add_route(DESCRIPTION, description, include_in_schema=False)
    app.add_route(PAGE, page, include_in_schema=False)
