"""Refusals as pages: what was wrong, in a sentence, with the id that leads to the log and nothing from inside."""

from typing import Any, Final
from urllib.parse import urlencode

from litestar import Request
from litestar.datastructures import Cookie
from litestar.response import Response, Template

from service.console import sessions
from service.console.visits import PAGE_HEADERS, ROOT, SIGN_IN, is_secure, page_of
from service.problems import TITLES, ProblemError

_UNAUTHORIZED: Final = "unauthorized"


def is_console(path: str) -> bool:
    """Whether a path is one of the console, so that its refusals are read by people."""
    return path == ROOT or path.startswith(f"{ROOT}/")


def refusal_page(request: Request[Any, Any, Any], problem: ProblemError, request_id: str) -> Response[Any]:
    """Return the page that stands for a problem; who is not signed in is led to where one signs in."""
    if problem.code == _UNAUTHORIZED:
        return _to_sign_in(request)
    title = TITLES[problem.code][1] if problem.code in TITLES else "Refused"
    context = {"problem": problem, "title": title, "request_id": request_id}
    page: Template = page_of(request, "refusal.html", context, status=problem.status)
    page.headers.update(problem.headers)
    return page


def _to_sign_in(request: Request[Any, Any, Any]) -> Response[Any]:
    query = request.scope["query_string"].decode("latin-1")
    wanted = request.scope["path"] + (f"?{query}" if query else "")
    # Where a form was sent to there is nothing to come back to.
    asked = f"?{urlencode({'next': wanted})}" if request.method == "GET" and wanted != ROOT else ""
    forget: list[Cookie] = []
    secure = is_secure(request)
    if sessions.read_cookie(request.cookies, secure=secure) is not None:
        forget.append(sessions.session_cookie(None, secure=secure))
    headers = {**PAGE_HEADERS, "Location": f"{SIGN_IN}{asked}"}
    return Response(b"", status_code=303, headers=headers, cookies=forget, media_type="text/plain")
