"""What tests of pages do first: start a run over the API, send a form of the page."""

from typing import Any

import httpx

from service.console.sessions import read_cookie

NOBODY = "00000000-0000-7000-8000-000000000000"


async def start(api: httpx.AsyncClient, workflow: str = "anything", **body: Any) -> str:
    answer = await api.post("/v1/runs", json={"workflow": workflow, "input": {}, **body})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def send(client: httpx.AsyncClient, path: str, **fields: Any) -> httpx.Response:
    session = read_cookie(client.cookies, secure=False)
    assert session is not None
    return await client.post(path, data={"form_token": session.form_token, **fields})
