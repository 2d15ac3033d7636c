"""`/openapi.json` and `/docs`."""

from typing import Final

from litestar.response.base import ASGIResponse

from service.http.routing import Call, RouteSpec, answer, route

_FOR_A_WHILE: Final = {"Cache-Control": "public, max-age=300"}
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'"


@route(RouteSpec("GET", "/openapi.json", "This API as an OpenAPI 3.1 document.", audience="anyone"))
async def openapi(call: Call) -> ASGIResponse:
    """Answer the document."""
    return answer(call.api.document, headers=_FOR_A_WHILE)


@route(RouteSpec("GET", "/docs", "This API as a page to read.", audience="anyone"))
async def docs(call: Call) -> ASGIResponse:
    """Answer the page."""
    headers = {**_FOR_A_WHILE, "Content-Security-Policy": _POLICY}
    return ASGIResponse(body=call.api.page, headers=headers, media_type="text/html")


ROUTES: Final = (openapi, docs)
