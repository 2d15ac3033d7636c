"""`/console/sign-in` and `/console/sign-out`: an API key for a session, and the end of it."""

from typing import Final

from litestar.response.base import ASGIResponse

from service import keys
from service.auth import Credential
from service.console import sessions
from service.console.visits import FORM_TOKEN, ROOT, SIGN_IN, Visit, page, safe_target
from service.http.routing import RouteSpec
from service.problems import ProblemError, unauthorized

NEXT: Final = "next"
_REFUSED: Final = "This key is not accepted. Keys begin with tny_ and can be revoked or run out."


@page(RouteSpec("GET", SIGN_IN, "The form to sign in.", audience="anyone", query=(NEXT,)))
async def show_sign_in(visit: Visit) -> ASGIResponse:
    """Show the form with a token that this browser alone has."""
    return _form(visit, safe_target(visit.query().one(NEXT) or ROOT))


@page(RouteSpec("POST", SIGN_IN, "Sign in.", audience="anyone"))
async def sign_in(visit: Visit) -> ASGIResponse:
    """Open a session of the key, under a new token; the one that the browser had ends."""
    token = sessions.read_form_cookie(visit.cookies, secure=visit.is_secure)
    # Without a cookie no token fits.
    form = await visit.form(token or sessions.new_form_token())
    target = safe_target(form.text(NEXT))
    try:
        key = keys.parse(form.text("key").strip())
        if key is None:
            raise unauthorized()
        visit.claim(Credential(key.tenant_id, key))
        async with visit.transaction() as tx:
            session = await sessions.open_session(tx, key.key_id)
    except ProblemError as problem:
        if problem.code == "unauthorized":
            return _form(visit, target, error=_REFUSED, status=problem.status)
        if problem.code == "tenant_suspended":
            return _form(visit, target, error="The tenant of this key is suspended.", status=problem.status)
        raise
    await _end(visit)
    cookies = [
        sessions.session_cookie(session, secure=visit.is_secure),
        sessions.form_cookie(None, secure=visit.is_secure),
    ]
    return visit.lead_to(target, cookies=cookies)


@page(RouteSpec("POST", f"{ROOT}/sign-out", "Sign out.", audience="anyone"))
async def sign_out(visit: Visit) -> ASGIResponse:
    """End the session, whatever has become of its key, and make the browser forget it."""
    if visit.session is not None:
        await visit.form()
        await _end(visit)
    return visit.lead_to(SIGN_IN, cookies=[sessions.session_cookie(None, secure=visit.is_secure)])


async def _end(visit: Visit) -> None:
    # Whoever knows the token may end the session: that its key was revoked must not keep it there.
    if visit.session is not None:
        async with visit.api.slots, visit.api.database.transaction(visit.session.tenant_id) as tx:
            await sessions.close_session(tx, visit.session)


def _form(visit: Visit, target: str, *, error: str = "", status: int = 200) -> ASGIResponse:
    token = sessions.new_form_token()
    context = {"target": target, "error": error, "field": FORM_TOKEN, "sign_in_token": token}
    cookie = sessions.form_cookie(token, secure=visit.is_secure)
    return visit.show("sign_in.html", context, status=status, cookies=[cookie])


ROUTES: Final = (show_sign_in, sign_in, sign_out)
