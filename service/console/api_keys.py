"""`/console/keys`: the tenant's API keys: listed, made and revoked by those who may administer them."""

from datetime import datetime
from typing import Any, Final
from uuid import UUID

from litestar.response.base import ASGIResponse

from service.auth import Scope
from service.console.forms import Form, moment
from service.console.visits import ROOT, Visit, page
from service.http.api_keys import CURSOR
from service.http.queries import page_of
from service.http.routing import RouteSpec
from service.problems import ProblemError, not_found, problem_of
from service.tenants import TenantError, create_key, list_keys, revoke_key
from tenancy import TenantTransaction

KEYS: Final = f"{ROOT}/keys"
REVOKE: Final = f"{KEYS}/{{key_id:str}}/revoke"
PAGE_SIZE: Final = 100
DEEDS: Final = {"revoked": "The key was revoked; nothing accepts it any more."}


@page(RouteSpec("GET", KEYS, "The API keys.", scope=Scope.KEYS_ADMIN, query=("cursor", "done")))
async def show_keys(visit: Visit) -> ASGIResponse:
    """List the keys, oldest first, with the form that makes one."""
    query = visit.query()
    after = query.cursor(CURSOR, None)
    async with visit.transaction() as tx:
        context = await _listing(tx, after)
    return visit.show("keys.html", {**context, "done": DEEDS.get(query.one("done") or "", "")})


@page(RouteSpec("POST", KEYS, "Make an API key.", scope=Scope.KEYS_ADMIN))
async def make_key(visit: Visit) -> ASGIResponse:
    """Make a key and show its secret: in this answer and nowhere else."""
    form = await visit.form()
    try:
        expires_at = _expiry(form)
        async with visit.transaction() as tx:
            made = await create_key(
                tx, name=form.text("name").strip(), scopes=form.many("scopes"), expires_at=expires_at
            )
            context = await _listing(tx, None)
    except (TenantError, ProblemError) as error:
        problem = problem_of(error, "")
        if problem.status != 422:  # noqa: PLR2004 - what the form got wrong
            raise
        async with visit.transaction() as tx:
            context = await _listing(tx, None)
        return visit.show("keys.html", {**context, "done": "", "problem": problem, "form": form}, status=problem.status)
    return visit.show("keys.html", {**context, "done": "", "made": made}, status=201)


@page(RouteSpec("GET", REVOKE, "The form to revoke an API key.", scope=Scope.KEYS_ADMIN))
async def ask_to_revoke(visit: Visit) -> ASGIResponse:
    """Ask whether it is meant."""
    key_id = visit.path_id("key_id", "API key")
    async with visit.transaction() as tx:
        found = await list_keys(tx, limit=1, after=UUID(int=max(key_id.int - 1, 0)))
    key = next((each for each in found if each["id"] == key_id), None)
    if key is None:
        raise not_found("There is no such API key.")
    is_own = visit.caller is not None and visit.caller.key_id == key_id
    return visit.show("revoke.html", {"key": key, "is_own": is_own})


@page(RouteSpec("POST", REVOKE, "Revoke an API key.", scope=Scope.KEYS_ADMIN))
async def revoke(visit: Visit) -> ASGIResponse:
    """Revoke the key from this transaction's commit on; its sessions end with it."""
    key_id = visit.path_id("key_id", "API key")
    await visit.form()
    async with visit.transaction() as tx:
        await revoke_key(tx, key_id)
    return visit.lead_to(KEYS, done="revoked")


async def _listing(tx: TenantTransaction, after: Any) -> dict[str, Any]:
    keys = await list_keys(tx, limit=PAGE_SIZE + 1, after=after)
    shown, last = page_of(keys, PAGE_SIZE)
    return {
        "keys": shown,
        "next_cursor": CURSOR.write(last["id"]) if last is not None else None,
        "all_scopes": tuple(Scope),
        "made": None,
        "problem": None,
        "form": None,
    }


def _expiry(form: Form) -> datetime | None:
    try:
        return moment(form.text("expires_at"))
    except ValueError as error:
        raise ProblemError("invalid_request", f"The time of expiry {error}.") from None


ROUTES: Final = (show_keys, make_key, ask_to_revoke, revoke)
