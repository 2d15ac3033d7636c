"""Ways to break the isolation of a sound schema, and the tests that have to fail."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ORDERS, LINES = "shop.orders", "shop.lines"
BOUND = "tenant_id = shop.tenant()"


@dataclass(frozen=True, slots=True)
class Fault:
    """What spoils the schema (or the configuration), whose tests fail, and which of them at least."""

    ddl: str
    subject: str
    fails: tuple[str, ...]
    says: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict)


def _policies(**by_command: str) -> str:
    """Replace the policy of orders by one for each command."""
    made = {"select": f"using ({BOUND})", "insert": f"with check ({BOUND})", "update": f"using ({BOUND})"}
    made |= {"delete": f"using ({BOUND})"} | by_command
    return "drop policy isolation on shop.orders;" + ";".join(
        f"create policy for_{command} on shop.orders for {command} {rule}" for command, rule in made.items()
    )


def _policy(rule: str) -> str:
    return f"drop policy isolation on shop.orders; create policy loose on shop.orders {rule}"


FAULTS: Mapping[str, Fault] = {
    # -- policies
    "rls-off": Fault(
        "alter table shop.orders disable row level security", ORDERS,
        tuple(f"{command}[{situation}]" for command in ("select", "lock", "insert", "update", "delete", "merge", "copy", "upsert")
              for situation in ("other", "none", "ended", "empty")),
    ),
    "true-for-all": Fault(_policy("using (true)"), ORDERS, ("select[other]", "insert[other]", "delete[none]", "upsert[other]")),
    "true-to-read": Fault(
        _policies(select="using (true)"), ORDERS, ("select[other]", "select[none]", "copy[other]", "copy[ended]"), "tells whether"
    ),
    "true-to-insert": Fault(
        _policies(insert="with check (true)"), ORDERS, ("insert[other]", "merge[other]", "upsert[other]", "insert[none]"),
        "not its own",
    ),
    "true-to-update": Fault(_policies(update="using (true) with check (true)"), ORDERS, ("update[other]", "update[empty]")),
    "given-away": Fault(_policies(update=f"using ({BOUND}) with check (true)"), ORDERS, ("update[other]",), "changed"),
    "true-to-delete": Fault(_policies(delete="using (true)"), ORDERS, ("delete[other]", "delete[none]"), "delete from"),
    "policy-for-nobody-bound": Fault(
        _policy("using (shop.tenant() is null or tenant_id = shop.tenant())"), ORDERS,
        ("select[none]", "select[ended]", "select[empty]", "delete[none]"),
    ),
    "policy-for-the-empty-tenant": Fault(
        _policy("using (current_setting('shop.tenant', true) = '' or tenant_id = shop.tenant())"), ORDERS,
        ("select[ended]", "select[empty]"),
    ),
    "policy-with-the-wrong-operator": Fault(
        _policy("using (tenant_id <> shop.tenant())"), ORDERS, ("select[other]", "update[other]", "delete[other]")
    ),
    "partition": Fault(
        "alter table shop.events_old disable row level security", "shop.events_old", ("select[other]", "insert[other]")
    ),
    "new-table": Fault(
        "create table shop.notes (tenant_id uuid not null, text text); grant all on shop.notes to shopkeeper", "shop.notes",
        ("select[other]", "past_policies[other]"),
    ),
    "no-tenant-column": Fault(
        "create table shop.notes (id int)", "shop.notes", ("has a tenant in each row",), "no column tenant_id"
    ),
    # -- keys and references
    "unique": Fault("alter table shop.orders add unique (reference)", ORDERS, ("keys[other]",), "tells whether"),
    "unique-expression": Fault(
        "create unique index by_note on shop.orders (lower(reference)) where total > 0", ORDERS, ("keys[other]",), "23505"
    ),
    "primary-key": Fault(
        "create table shop.notes (tenant_id uuid not null, id int primary key); grant select, insert on shop.notes to shopkeeper;"
        " alter table shop.notes enable row level security, force row level security;"
        f" create policy own on shop.notes using ({BOUND})", "shop.notes", ("keys[other]",),
    ),
    "exclusion": Fault(
        "alter table shop.orders add during daterange not null;"
        " alter table shop.orders add exclude using gist (during with &&)", ORDERS, ("keys[other]",), "23P01",
    ),
    "key-of-nothing": Fault(
        "create unique index by_paid on shop.orders (tenant_id, reference) where status = 'paid'", ORDERS, ("keys[other]",),
        "by_paid",
    ),
    "reference": Fault(
        "alter table shop.orders add unique (id); alter table shop.lines drop constraint lines_tenant_id_order_id_fkey;"
        " alter table shop.lines add foreign key (order_id) references shop.orders (id)", LINES, ("references[other]",),
        "not refused",
    ),
    "reference-crosswise": Fault(
        "alter table shop.orders add owner_id uuid; alter table shop.orders add foreign key (owner_id) references shop.accounts (id)",
        ORDERS, ("references[other]",), "not refused",
    ),
    # -- what no policy limits
    "truncate": Fault("grant truncate on shop.lines to shopkeeper", LINES, ("past_policies[other]",), "truncate"),
    "trigger": Fault("grant trigger on shop.orders to shopkeeper", ORDERS, ("past_policies[other]",), "trigger"),
    "owner": Fault("alter table shop.orders owner to shopkeeper", ORDERS, ("past_policies[other]",), "disable row level"),
    "superuser": Fault("alter role shopkeeper superuser", "role shopkeeper", ("is bound by policies",), "superuser"),
    "bypassrls": Fault("alter role shopkeeper bypassrls", "role shopkeeper", ("is bound by policies",), "BYPASSRLS"),
    "view": Fault(
        "alter view shop.open_orders set (security_invoker = false)", "shop.open_orders", ("view[other]", "view[none]"), "tells whether"
    ),
    "counting-view": Fault(
        "create view shop.totals as select count(*) from shop.lines; grant select on shop.totals to shopkeeper", "shop.totals",
        ("view[other]", "view[empty]"),
    ),
    "materialized-view": Fault(
        "create materialized view shop.copies as select id from shop.orders; grant select on shop.copies to shopkeeper",
        "shop.copies", ("is out of reach",), "materialized",
    ),
    "foreign-table": Fault(
        "create extension file_fdw; create server files foreign data wrapper file_fdw; create foreign table shop.log (line text)"
        " server files options (filename '/dev/null'); grant select on shop.log to shopkeeper", "shop.log", ("is out of reach",),
        "foreign table",
    ),
    "shared-and-written": Fault("grant update (name) on shop.countries to shopkeeper", "shop.countries", ("is only read",), "UPDATE"),
    "definer-trigger": Fault(
        "create function shop.touch() returns trigger language plpgsql security definer as"
        " $$ begin if pg_trigger_depth() < 2 then update shop.lines set price = price + 1; end if; return new; end $$;"
        " create trigger touch after insert on shop.lines for each row execute function shop.touch()", LINES, ("insert[other]",),
        "not its own",
    ),
    # -- the configuration
    "binds-for-the-session": Fault(
        "select 1", ORDERS, ("select[ended]", "copy[ended]"),
        changes={"bind": ("select set_config('shop.tenant', %(tenant)s, false)",)},
    ),
    "binds-nothing": Fault(
        "select 1", "role shopkeeper", ("sees its own rows when bound",), "`bind`",
        changes={"bind": ("select set_config('other.tenant', %(tenant)s, true)",)},
    ),
    "connects-as-somebody-else": Fault(
        "select 1", "role shopkeeper", ("is who connects",), "postgres", changes={"database_url": "superuser"}
    ),
}  # fmt: skip
