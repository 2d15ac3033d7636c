"""What a page is: a function of a `Visit`, declared like a route of the API, answered as HTML under a strict policy.

A visit reads its request before it opens a transaction; that transaction finds out first whether the session and its
key hold. What changes something comes as a form of ours: its token is the session's own.
"""

import hmac
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final
from urllib.parse import urlencode

from litestar import Request
from litestar.datastructures import Cookie
from litestar.handlers import HTTPRouteHandler
from litestar.response import Template
from litestar.response.base import ASGIResponse

from service.auth import Credential, Scope
from service.console import sessions
from service.console.forms import Form, read_form
from service.console.places import places_for
from service.http.queries import Query
from service.http.routing import Call, RouteSpec, register
from service.problems import ProblemError, unauthorized

ROOT: Final = "/console"
SIGN_IN: Final = f"{ROOT}/sign-in"
# Nothing from elsewhere, nothing inline; pages are neither framed nor kept.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self';"
    " base-uri 'none'; frame-ancestors 'none'"
)
PAGE_HEADERS: Final[Mapping[str, str]] = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
FORM_TOKEN: Final = "form_token"  # noqa: S105 - the name of a field
SESSION: Final = "session"
_OTHER_SITES: Final = frozenset({"cross-site", "same-site"})


class Visit(Call):
    """One request for a page. `session` is what the cookie claims."""

    __slots__ = ("is_secure", "session")

    def __init__(self, request: Request[Any, Any, Any], spec: RouteSpec) -> None:
        super().__init__(request, spec)
        self.is_secure = is_secure(request)
        self.session = sessions.read_cookie(request.cookies, secure=self.is_secure)
        # An error's page greets whoever the request turned out to come from.
        request.scope["state"]["visit"] = self

    async def identify(self) -> None:
        """Take the session for what it claims to be, before anything else and without the database."""
        if self.session is None:
            raise unauthorized()
        self.claim(self.session.credential)

    def query(self) -> Query:
        """Return the query string; a field that was left empty counts as not sent."""
        parts = self._request.scope["query_string"].split(b"&")
        return Query(b"&".join(part for part in parts if not part.endswith(b"=")), self.spec.query)

    def claim(self, credential: Credential) -> None:
        """Say what the visit's transactions are opened with."""
        self._credential = credential

    async def form(self, token: str | None = None) -> Form:
        """Read the form that was sent.

        Raises:
            ProblemError: 403 when it is not one of ours: it lacks the session's token, or `token` where one is given.
        """
        if self.headers.get("sec-fetch-site", "same-origin") in _OTHER_SITES:
            raise _not_ours()
        form = await read_form(self._request.receive, self.headers, self.api.settings.max_payload_bytes)
        wanted = token if token is not None else self.session.form_token if self.session is not None else None
        if wanted is None or not hmac.compare_digest(form.text(FORM_TOKEN).encode(), wanted.encode()):
            raise _not_ours()
        return form

    @property
    def cookies(self) -> Mapping[str, str]:
        """The cookies of the request."""
        return self._request.cookies

    def may(self, scope: Scope) -> bool:
        """Whether the caller has the scope; once a transaction was opened."""
        return self.caller is not None and scope in self.caller.scopes

    def show(
        self, template: str, context: Mapping[str, Any], *, status: int = 200, cookies: Iterable[Cookie] = ()
    ) -> ASGIResponse:
        """Answer a page."""
        return page_of(self._request, template, context, status=status, cookies=cookies).to_asgi_response(
            None, self._request
        )

    def lead_to(self, path: str, *, cookies: Iterable[Cookie] = (), **query: str) -> ASGIResponse:
        """Answer that the browser shall go on to another page of ours."""
        return ASGIResponse(
            status_code=303,
            headers={**PAGE_HEADERS, "Location": f"{path}?{urlencode(query)}" if query else path},
            cookies=cookies,
            media_type="text/plain",
        )


Page = Callable[[Visit], Awaitable[ASGIResponse]]


def page(spec: RouteSpec) -> Callable[[Page], HTTPRouteHandler]:
    """Declare the decorated function as the page of `spec`: for whoever has a session, unless it is for anyone."""
    audience = SESSION if spec.audience == "tenant" else spec.audience
    return lambda endpoint: register(replace(spec, audience=audience), Visit, endpoint)


def page_of(
    request: Request[Any, Any, Any],
    template: str,
    context: Mapping[str, Any],
    *,
    status: int = 200,
    cookies: Iterable[Cookie] = (),
) -> Template:
    """Return a template as a response, with what all pages show and all their answers have."""
    visit: Visit | None = request.scope["state"].get("visit")
    caller = visit.caller if visit is not None else None
    scopes = caller.scopes if caller is not None else frozenset[str]()
    shared = {
        "caller": caller,
        "form_token": visit.session.form_token if visit is not None and visit.session is not None else "",
        "path": request.scope["path"],
        "places": places_for(scopes),
        "scopes": scopes,
    }
    return Template(
        template,
        context={**shared, **context},
        status_code=status,
        media_type="text/html",
        headers=dict(PAGE_HEADERS),
        cookies=list(cookies),
    )


def is_secure(request: Request[Any, Any, Any]) -> bool:
    """Whether the browser speaks TLS, to us or to the proxy before us.

    Claiming so without it only makes one's own cookie stricter.
    """
    forwarded = request.headers.get("x-forwarded-proto", "").partition(",")[0].strip().lower()
    return request.scope["scheme"] == "https" or forwarded == "https"


def safe_target(text: str) -> str:
    """Return where to go after signing in: a page of the console, whatever was asked for."""
    is_ours = text == ROOT or text.startswith((f"{ROOT}/", f"{ROOT}?"))
    return text if is_ours and text.isascii() and text.isprintable() and "\\" not in text else ROOT


def _not_ours() -> ProblemError:
    return ProblemError("forbidden", "The form is out of date. Go back, reload the page and send it again.")
