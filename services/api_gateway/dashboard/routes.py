"""The routes of the dashboard: its page at each of its URLs, and its files.

They need no key, because they hold no data. They are not part of the API, so /openapi.json does not
describe them. Tests: tests/integration/test_dashboard_routes.py.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from services.api_gateway.dashboard.files import ASK_AGAIN, SECURITY, Files, StaticFile
from services.api_gateway.problems import MEDIA_TYPE, Problem, render

# The URLs of the pages. static/data/router.js reads the same paths.
PAGES: Final = (
    "/",
    "/queue",
    "/jobs",
    "/jobs/{job}",
    "/submit",
    "/models",
    "/models/{model}",
    "/deploy",
    "/tenants",
    "/tenants/{tenant}",
    "/audit",
    "/nodes",
    "/nodes/{node}",
    "/sign-in",
)
FILES: Final = "/dashboard/{digest}/{path:path}"

Endpoint = Callable[[Request], Awaitable[Response]]


def routes(files: Files) -> list[Route]:
    """Return the routes; the files are read once."""
    return [
        *(Route(path, _page(files), methods=["GET"]) for path in PAGES),
        Route(FILES, _file(files), methods=["GET"]),
    ]


def _page(files: Files) -> Endpoint:
    async def page(request: Request) -> Response:
        headers = {"content-security-policy": files.policy, "cache-control": ASK_AGAIN}
        return _answer(request, files.page, headers)

    return page


def _file(files: Files) -> Endpoint:
    async def file(request: Request) -> Response:
        path = request.path_params["path"]
        found = files.by_path.get(path)
        if found is None:
            text = f"/dashboard has no file {path[:200]!r}: load the page again, it is at /"
            return Response(render(Problem(404, text)), 404, media_type=MEDIA_TYPE)
        cached = files.cache_control(request.path_params["digest"])
        return _answer(request, found, {"cache-control": cached})

    return file


def _answer(request: Request, file: StaticFile, headers: dict[str, str]) -> Response:
    headers = {**SECURITY, **headers, "etag": file.etag, "vary": "accept-encoding"}
    if file.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    if file.gzipped is not None and "gzip" in request.headers.get("accept-encoding", ""):
        headers["content-encoding"] = "gzip"
        return Response(file.gzipped, media_type=file.media_type, headers=headers)
    return Response(file.data, media_type=file.media_type, headers=headers)
