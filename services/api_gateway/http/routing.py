"""The declarations of routes: a method, a path and the function that answers.

Starlette serves the routes (`app.py`). FastAPI makes their OpenAPI description
(`route_description.py`) and is imported at the first request for it, because this import would be a
quarter of a gateway's start. Tests: tests/unit/test_lean_imports.py,
tests/unit/test_openapi.py and tests/integration/test_gateway_*.py.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

# The request first, then the parameters of the path by name.
Answers = Callable[..., Awaitable[Response]]
Function = TypeVar("Function", bound=Answers)


class Declared(NamedTuple):
    """One route. `tags`, `status_code` and `openapi_extra` are for the description alone."""

    method: str
    path: str
    function: Answers
    tags: tuple[str, ...]
    status_code: int | None
    openapi_extra: Mapping[str, Any] | None


class APIRouter:
    """The routes of one file."""

    def __init__(self, tags: list[str]) -> None:
        self.tags = tuple(tags)
        self.routes: list[Declared] = []

    def get(
        self,
        path: str,
        status_code: int | None = None,
        openapi_extra: Mapping[str, Any] | None = None,
    ) -> Callable[[Function], Function]:
        """Declare a GET."""
        return self._declare("GET", path, status_code, openapi_extra)

    def post(
        self,
        path: str,
        status_code: int | None = None,
        openapi_extra: Mapping[str, Any] | None = None,
    ) -> Callable[[Function], Function]:
        """Declare a POST."""
        return self._declare("POST", path, status_code, openapi_extra)

    def put(
        self,
        path: str,
        status_code: int | None = None,
        openapi_extra: Mapping[str, Any] | None = None,
    ) -> Callable[[Function], Function]:
        """Declare a PUT."""
        return self._declare("PUT", path, status_code, openapi_extra)

    def patch(
        self,
        path: str,
        status_code: int | None = None,
        openapi_extra: Mapping[str, Any] | None = None,
    ) -> Callable[[Function], Function]:
        """Declare a PATCH."""
        return self._declare("PATCH", path, status_code, openapi_extra)

    def delete(
        self,
        path: str,
        status_code: int | None = None,
        openapi_extra: Mapping[str, Any] | None = None,
    ) -> Callable[[Function], Function]:
        """Declare a DELETE."""
        return self._declare("DELETE", path, status_code, openapi_extra)

    def _declare(
        self,
        method: str,
        path: str,
        status_code: int | None,
        openapi_extra: Mapping[str, Any] | None,
    ) -> Callable[[Function], Function]:
        def declare(function: Function) -> Function:
            self.routes.append(
                Declared(
                    method=method,
                    path=path,
                    function=function,
                    tags=self.tags,
                    status_code=status_code,
                    openapi_extra=openapi_extra,
                )
            )
            return function

        return declare


def served(declared: Declared, prepare: Callable[[Request], Awaitable[None]]) -> Route:
    """Return the route as Starlette serves it. `prepare` runs before the function, or raises."""

    async def endpoint(request: Request) -> Response:
        await prepare(request)
        return await declared.function(request, **request.path_params)

    route = Route(declared.path, endpoint, methods=[declared.method])
    route.methods = {declared.method}  # Starlette adds HEAD to GET
    return route
