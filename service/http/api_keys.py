"""`/v1/api-keys`: the tenant's keys, by those who may administer them."""

from typing import Final

from litestar.response.base import ASGIResponse

from service.auth import Scope
from service.http.queries import page_of, uuid_cursor
from service.http.requests import ApiKeyBody
from service.http.routing import Call, RouteSpec, answer, empty, route
from service.tenants import create_key, list_keys, revoke_key

CURSOR: Final = uuid_cursor(b"k")


@route(
    RouteSpec(
        "GET",
        "/v1/api-keys",
        "List the keys, oldest first.",
        scope=Scope.KEYS_ADMIN,
        query=("limit", "cursor"),
        answers={200: "ApiKeyPage"},
        refuses=(400, 422),
    )
)
async def list_api_keys(call: Call) -> ASGIResponse:
    """Read one page by the key of the keys."""
    query = call.query()
    limit, after = query.limit(), query.cursor(CURSOR, None)
    async with call.transaction() as tx:
        keys = await list_keys(tx, limit=limit + 1, after=after)
    page, last = page_of(keys, limit)
    return answer({"data": page, "next_cursor": last and CURSOR.write(last["id"])})


@route(
    RouteSpec(
        "POST",
        "/v1/api-keys",
        "Make a key; its secret is in this answer and nowhere else.",
        scope=Scope.KEYS_ADMIN,
        body=ApiKeyBody,
        answers={201: "ApiKeyCreated"},
        refuses=(400, 413, 415, 422),
    )
)
async def create_api_key(call: Call) -> ASGIResponse:
    """Make the key in the request's transaction."""
    body = await call.body(ApiKeyBody)
    async with call.transaction() as tx:
        key = await create_key(tx, name=body.name, scopes=body.scopes, expires_at=body.expires_at)
    return answer(key, 201, {"Location": f"/v1/api-keys/{key['id']}"})


@route(
    RouteSpec(
        "DELETE",
        "/v1/api-keys/{key_id:str}",
        "Revoke a key, at once.",
        scope=Scope.KEYS_ADMIN,
        answers={204: None},
        refuses=(404,),
    )
)
async def revoke_api_key(call: Call) -> ASGIResponse:
    """Revoke the key from this transaction's commit on."""
    key_id = call.path_id("key_id", "API key")
    async with call.transaction() as tx:
        await revoke_key(tx, key_id)
    return empty()


ROUTES: Final = (list_api_keys, create_api_key, revoke_api_key)
