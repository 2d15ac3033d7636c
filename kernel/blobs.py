"""Where payloads live that are too large for their rows, and how they get there and back.

A payload of more than `inline_bytes` (UTF-8) is kept in a `BlobStore`, addressed by its content within its run: what a
step, its stage and its run all answer with is kept once. The row has NULL in place of the payload and the digest in a
column of its own, so nothing that a user sends can be taken for a reference. Whatever its size, a row that has its
payload is right: who reads looks for a digest only where the payload is missing.
"""

from collections.abc import Collection, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Protocol, TypeAlias
from uuid import UUID

import orjson

from kernel.errors import RunNotFoundError
from tenancy import Call, Row, TenantTransaction, load_sql

SQL = load_sql(__file__)
# The code of a run that cannot go on because a payload of its is gone.
PAYLOAD_LOST = "PAYLOAD_LOST"
# What `tenantry.inline_payload_bytes()` says as well, for runs that come from SQL.
INLINE_BYTES = 256 * 1024
# The run, and the SHA-256 of the payload's JSON text in UTF-8.
BlobKey: TypeAlias = tuple[UUID, bytes]


class BlobStore(Protocol):
    """Keeps payloads for the runs of the bound tenant.

    A store outside of Postgres puts before it returns, under a key made of tenant, run and digest: what a transaction
    that rolls back has put is met again, or goes with its run. Nothing here deletes: `run.purge` deletes rows, and
    such a store what lies below their runs.
    """

    @property
    def inline_bytes(self) -> int:
        """The most bytes of JSON text that a payload may have and stay in its row."""
        ...

    async def put(self, tx: TenantTransaction, contents: Mapping[BlobKey, str]) -> None:
        """Keep payloads; those that are kept already cost a look."""
        ...

    async def get(self, tx: TenantTransaction, keys: Collection[BlobKey]) -> Mapping[BlobKey, str]:
        """Return the payloads that are there, of those that are asked for."""
        ...


@dataclass(frozen=True, slots=True)
class PostgresBlobs:
    """Keeps payloads in `tenantry.workflow_blobs`, in the transaction that refers to them."""

    inline_bytes: int = INLINE_BYTES

    async def put(self, tx: TenantTransaction, contents: Mapping[BlobKey, str]) -> None:
        """Write each payload by a statement of its own; they travel together, and with what comes next."""
        keys = sorted(contents, key=lambda key: (key[0].int, key[1]))
        await tx.send([(SQL["keep"], {"run_id": key[0], "digest": key[1], "content": contents[key]}) for key in keys])

    async def get(self, tx: TenantTransaction, keys: Collection[BlobKey]) -> Mapping[BlobKey, str]:
        """Read the payloads by their keys, in one statement."""
        run_ids, digests = sorted({run_id for run_id, _ in keys}), sorted({digest for _, digest in keys})
        rows = await tx.fetch_all(SQL["contents"], run_ids=run_ids, digests=digests)
        return {(row["run_id"], row["digest"]): row["content"] for row in rows}


POSTGRES_BLOBS = PostgresBlobs()


@dataclass(slots=True)
class PutAside:
    """The payloads of one transaction that do not go into their rows."""

    store: BlobStore
    contents: dict[BlobKey, str] = field(default_factory=dict[BlobKey, str])
    _digests: dict[str, bytes] = field(default_factory=dict[str, bytes])

    def take(self, item: MutableMapping[str, Any], column: str) -> bytes | None:
        """Take a column's text out of an item that names its `run_id`, if it is too large; returns its digest."""
        text: str | None = item.get(column)
        if text is None or not is_large(text, self.store.inline_bytes):
            return None
        # A stage's output is often its run's too, the very same object: digested once.
        digest = self._digests.get(text)
        if digest is None:
            digest = self._digests[text] = sha256(text.encode()).digest()
        self.contents[item["run_id"], digest] = text
        item[column] = None
        return digest


def is_large(text: str | None, inline_bytes: int) -> bool:
    """Whether a payload is there and has more bytes of UTF-8 than may stay in its row."""
    if text is None or len(text) * 4 <= inline_bytes:
        return False
    return len(text) > inline_bytes or (not text.isascii() and len(text.encode()) > inline_bytes)


def reference_to(section: str, items: Sequence[Mapping[str, Any]]) -> Call:
    """Return the call that makes rows of one kind refer to blobs; `digest` in the items is hex."""
    run_ids = sorted({item["run_id"] for item in items})
    return SQL[section], {"run_ids": run_ids, "items": orjson.dumps(list(items)).decode()}


@dataclass(frozen=True, slots=True)
class Found:
    """What became of payloads that were looked for: those that are there, and those that their store has lost.

    What went with its run is neither.
    """

    contents: Mapping[BlobKey, str]
    lost: frozenset[BlobKey] = frozenset()


async def find(store: BlobStore, tx: TenantTransaction, keys: Iterable[BlobKey]) -> Found:
    """Look for payloads; one that is missing is no other's fault. Asks nobody when there are none to look for.

    A purge takes a run and its payloads in one transaction: a later statement tells what is lost from what is gone.
    """
    wanted = set(keys)
    if not wanted:
        return Found({})
    contents = await store.get(tx, wanted)
    missing = wanted - contents.keys()
    if not missing:
        return Found(contents)
    rows = await tx.fetch_all(SQL["existing"], run_ids=sorted({run_id for run_id, _ in missing}))
    existing = {row["run_id"] for row in rows}
    return Found(contents, frozenset(key for key in missing if key[0] in existing))


def loss(what: str, digest: bytes) -> str:
    """Return the error of a run that cannot go on without a payload."""
    return f"{PAYLOAD_LOST}: {what} is not in the blob store ({digest.hex()[:12]})"


async def with_inputs(store: BlobStore, tx: TenantTransaction, rows: Sequence[Row]) -> list[Row]:
    """Return rows of locked runs with the input and config that are not in them; rows without such columns as they are.

    Where one is lost, the row's `lost` says so (see `filled`) and the column stays None.
    """
    lacking = sorted({row["run_id"] for row in rows if _lacks_payload(row)})
    if not lacking:
        return list(rows)
    referring = {row["run_id"]: row for row in await tx.fetch_all(SQL["digests_of_runs"], run_ids=lacking)}
    columns = ("input", "config")
    found = await find(
        store,
        tx,
        (
            (run_id, row[f"{column}_digest"])
            for run_id, row in referring.items()
            for column in columns
            if row[f"{column}_digest"] is not None
        ),
    )
    return [filled(row, referring.get(row["run_id"], {}), found, columns) for row in rows]


async def step_results(
    aside: PutAside, tx: TenantTransaction, steps: Iterable[tuple[UUID, str, str]]
) -> Mapping[tuple[UUID, str, str], str | None]:
    """Return those results of (run, stage, step) that are not in their rows, from what was put aside or from its store.

    One that is lost is None; steps that are gone, with their run or by a redrive, are left out.
    """
    items = [{"run_id": run_id, "stage_id": stage_id, "step_id": step_id} for run_id, stage_id, step_id in steps]
    if not items:
        return {}
    section, arguments = reference_to("digests_of_steps", items)
    rows = await tx.fetch_all(section, **arguments)
    keys = {(row["run_id"], row["stage_id"], row["step_id"]): (row["run_id"], row["result_digest"]) for row in rows}
    found = await find(aside.store, tx, set(keys.values()) - aside.contents.keys())
    contents = {**aside.contents, **found.contents}
    return {step: contents.get(key) for step, key in keys.items() if key in contents or key in found.lost}


def filled(row: Row, digests: Mapping[str, Any], found: Found, columns: Iterable[str]) -> Row:
    """Return a row with the payloads of `columns` that it lacks; `digests` holds `<column>_digest`.

    Where some are lost it has a `lost` as well: their columns, each with its digest.
    """
    keys: dict[str, BlobKey] = {
        name: (row["run_id"], digests[f"{name}_digest"])
        for name in columns
        if name in row and row[name] is None and digests.get(f"{name}_digest") is not None
    }
    had = {name: found.contents[key] for name, key in keys.items() if key in found.contents}
    lost = {name: key[1] for name, key in keys.items() if key in found.lost}
    return {**row, **had, **({"lost": lost} if lost else {})} if had or lost else row


async def with_contents(store: BlobStore, tx: TenantTransaction, rows: Sequence[Row], *columns: str) -> list[Row]:
    """Return rows, which hold `run_id` and `<column>_digest`, with the payloads of `columns` that they lack.

    Where one is lost, the row's `lost` says so (see `filled`) and the column stays None.

    Raises:
        RunNotFoundError: a run was purged since its rows were read.
    """
    keys = [
        (row["run_id"], row[f"{column}_digest"])
        for row in rows
        for column in columns
        if row[column] is None and row[f"{column}_digest"] is not None
    ]
    if not keys:
        return list(rows)
    found = await find(store, tx, keys)
    for run_id, _ in set(keys) - found.contents.keys() - found.lost:
        raise RunNotFoundError(run_id)
    return [filled(row, row, found, columns) for row in rows]


def _lacks_payload(row: Row) -> bool:
    # A job's row whose run was not had carries nothing of the run.
    return row.get("run_had", True) and "input" in row and (row["input"] is None or row["config"] is None)
