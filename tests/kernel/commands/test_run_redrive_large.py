"""`run.redrive` of runs whose payloads are too large for their rows: what is kept, what is archived, what is left over."""

import json
from typing import Any
from uuid import UUID

import psycopg
import pytest

from kernel import (
    InvalidRequestError,
    Kernel,
    Registry,
    RunCreate,
    RunRedrive,
    StageContext,
    Terminal,
    Workflow,
    stage,
    workflow,
)
from kernel.blobs import INLINE_BYTES
from kernel.queries.run_annotations import OLDEST, run_annotations
from kernel.queries.run_get import run_get
from tenancy import Database
from tests.kernel.commands.redriven import ARCHIVE
from tests.support.blobs import lose
from tests.support.looking import Look

LARGE = "ä" * INLINE_BYTES


def bulky(made: list[Any], *, version: str = "1", returns: type = str) -> Workflow:
    """`make` answers with what is first in `made`; `ship` hands it on, or fails where it is told to."""

    async def act(ctx: StageContext, given: str) -> Any:
        return made.pop(0)

    act.__annotations__["return"] = returns

    @stage("ship")
    async def ship(ctx: StageContext, product: returns) -> returns:  # type: ignore[valid-type]
        if product == "fail" or made[:1] == ["fail"]:
            made.clear()
            raise Terminal("told to")
        return product

    return workflow("bulky", input=str).pipe(stage("make")(act)).pipe(ship).version(version).build()


async def play(database: Database, tenant: UUID, kernel: Kernel, command: Any) -> tuple[UUID, str | None]:
    """Carry out a command, bring its run to its end and return the run and its output."""
    async with database.transaction(tenant) as tx:
        run_id = getattr(await kernel.dispatch(command, tx), "run_id", None) or command.run_id
        await kernel.bound_to(tx).run_to_completion(run_id)
        view = await run_get(tx, run_id)
    assert view is not None
    return run_id, view.output


async def test_a_run_goes_on_from_outputs_that_are_kept(database: Database, tenant: UUID) -> None:
    kernel = Kernel(Registry([bulky([LARGE, "fail"])]))
    run_id, output = await play(database, tenant, kernel, RunCreate("bulky", LARGE))
    assert output is None
    _, output = await play(database, tenant, kernel, RunRedrive(run_id))
    assert json.loads(output or "") == LARGE


async def test_the_archive_says_where_a_superseded_output_is(database: Database, tenant: UUID, look: Look) -> None:
    kernel = Kernel(Registry([bulky([LARGE, "small"])]))
    run_id, first = await play(database, tenant, kernel, RunCreate("bulky", "x"))
    _, second = await play(database, tenant, kernel, RunRedrive(run_id, "start"))
    # Digests of the first time are left over where the second has small outputs, and mean nothing.
    assert (json.loads(first or ""), second) == (LARGE, '"small"')
    archived = await look(ARCHIVE, run_id)
    assert [row["stage_id"] for row in archived] == ["make", "ship"]
    (kept,) = await look(
        "select encode(digest, 'hex') as digest, content from tenantry.workflow_blobs where run_id = %s", run_id
    )
    assert [row["payload"] for row in archived] == [{"output_digest": kept["digest"]}] * 2
    assert json.loads(kept["content"]) == LARGE


async def test_another_version_is_compared_with_what_is_kept(database: Database, tenant: UUID) -> None:
    made: list[Any] = [LARGE, "fail"]
    run_id, _ = await play(database, tenant, Kernel(Registry([bulky(made)])), RunCreate("bulky", LARGE))
    other = Kernel(Registry([bulky(made, version="2", returns=int)]))
    async with database.transaction(tenant) as tx:
        with pytest.raises(InvalidRequestError, match="does not fit"):
            await other.dispatch(RunRedrive(run_id, definition_version="latest"), tx)
    fitting = Kernel(Registry([bulky(made, version="3", returns=Any)]))
    _, output = await play(database, tenant, fitting, RunRedrive(run_id, definition_version="latest"))
    assert json.loads(output or "") == LARGE


async def test_a_superseded_output_is_read_like_any_whatever_its_size(
    database: Database, tenant: UUID, superuser: psycopg.AsyncConnection
) -> None:
    kernel = Kernel(Registry([bulky([LARGE, "small", "last"])]))
    run_id, _ = await play(database, tenant, kernel, RunCreate("bulky", "x"))
    for _ in range(2):
        await play(database, tenant, kernel, RunRedrive(run_id, "start"))

    async def payloads(**options: Any) -> list[tuple[str | None, int | None]]:
        async with database.transaction(tenant) as tx:
            page = await run_annotations(tx, run_id, limit=9, **options)
        assert not page.has_more
        return [(each.payload, each.payload_length) for each in page.annotations]

    whole = f'{{"output":{json.dumps(LARGE, ensure_ascii=False)}}}'
    shown = await payloads()
    assert shown[:2] == [(whole, len(whole))] * 2
    assert [json.loads(payload or "") for payload, _ in shown[2:]] == [{"output": "small"}] * 2
    assert (await payloads(most_length=20))[0] == (whole[:20], len(whole))
    # Without it, its digest is what is left to say.
    await lose(superuser, run_id)
    assert [set(json.loads(payload or "")) for payload, _ in await payloads()][:2] == [{"output_digest"}] * 2


async def test_large_superseded_outputs_make_pages_short(database: Database, tenant: UUID) -> None:
    made = [str(number) * (3 * 1024 * 1024) for number in range(3)]
    kernel = Kernel(Registry([bulky([*made, "last"])]))
    run_id, _ = await play(database, tenant, kernel, RunCreate("bulky", "x"))
    for _ in made:
        await play(database, tenant, kernel, RunRedrive(run_id, "stage", "make"))
    after, has_more = OLDEST, True
    pages: list[list[str]] = []
    async with database.transaction(tenant) as tx:
        while has_more:
            found, has_more = await run_annotations(tx, run_id, after=after, limit=9)
            pages.append([json.loads(each.payload or "")["output"][0] for each in found])
            after = found[-1].annotation_id
    # Each attempt of `make`, and what `ship` made of it; a page ends with what takes it beyond 4 MiB.
    assert pages == [["0", "0"], ["1", "1"], ["2", "2"]]


@pytest.mark.parametrize(
    ("value", "payload"),
    [
        ('{"redrive_count": 1}', '{"output_digest": "no digest"}'),
        ('{"redrive_count": 1}', '{"output_digest": ["00"]}'),
        ('{"redrive_count": 1}', '"output_digest"'),
        ("1", '{"output_digest": "' + "0" * 64 + '"}'),
        ('{"redrive_count": 1}', None),
    ],
)
async def test_what_a_body_notes_under_the_name_is_shown_as_it_noted_it(
    database: Database, tenant: UUID, superuser: psycopg.AsyncConnection, value: str, payload: str | None
) -> None:
    run_id, _ = await play(database, tenant, Kernel(Registry([bulky(["small"])])), RunCreate("bulky", LARGE))
    await superuser.execute(
        "insert into tenantry.workflow_annotations (tenant_id, run_id, stage_id, attempt, key, value, payload)"
        " values (%s, %s, 'make', 1, 'run.superseded_attempt', %s, %s)",
        (tenant, run_id, value, payload),
    )
    async with database.transaction(tenant) as tx:
        ((shown,), _) = await run_annotations(tx, run_id, limit=9)
    assert (shown.value, shown.payload) == (value, payload)
