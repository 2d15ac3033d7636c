-- name: admit
-- The tenant's standing and its limits on creation, and an id for the run made by the database.
-- A tenant without a row (an embedding product may keep its own list) counts as active and unlimited.
select
  tenantry.uuid7() as run_id,
  tenant.status as tenant_status,
  creation.tenant_id is not null as limited,
  creation.pending_runs,
  creation.runs_per_minute,
  creation.payload_bytes
from (select :tenant_id::uuid as tenant_id) as bound
left join tenantry.tenants as tenant on tenant.tenant_id = :tenant_id::uuid
left join tenantry.tenant_limits as creation
  on creation.tenant_id = :tenant_id::uuid and creation.kind = 'create'

-- name: reserve_key
-- Take the key for this run, or write nothing: a concurrent holder is waited for, however long its transaction lasts, and
-- what it left behind is read by find_key, a later statement. Inserted before anything is locked.
insert into tenantry.idempotency_keys (tenant_id, command, key, run_id, fingerprint, expires_at)
values (
  :tenant_id::uuid, 'run.create', :key::text, :run_id::uuid,
  sha256(convert_to(:request::text::jsonb::text, 'UTF8')), tenantry.now() + :ttl::interval
)
on conflict (tenant_id, command, key) do nothing
returning key

-- name: find_key
-- Who has the key: the same request or another, which run, and whether the key has had its time (never before its run is over).
select
  kept.run_id,
  kept.fingerprint = sha256(convert_to(:request::text::jsonb::text, 'UTF8')) as same_request,
  kept.expires_at,
  kept.expires_at <= tenantry.now()
    and (run.run_id is null or run.status in ('COMPLETED', 'FAILED', 'CANCELLED')) as expired,
  run.status,
  run.version
from tenantry.idempotency_keys as kept
left join tenantry.workflow_runs as run on run.tenant_id = :tenant_id::uuid and run.run_id = kept.run_id
where kept.tenant_id = :tenant_id::uuid and kept.command = 'run.create' and kept.key = :key::text

-- name: take_over_key
-- Take an expired key; guarded by the expiry that was seen, so that of two takers one writes no row and looks again.
update tenantry.idempotency_keys as kept
set
  run_id = :run_id::uuid,
  fingerprint = sha256(convert_to(:request::text::jsonb::text, 'UTF8')),
  created_at = tenantry.now(),
  expires_at = tenantry.now() + :ttl::interval
where kept.tenant_id = :tenant_id::uuid and kept.command = 'run.create' and kept.key = :key::text
  and kept.expires_at = :seen_expiry::timestamptz
returning kept.key

-- name: release_key
-- A refused request does not use up its key.
delete from tenantry.idempotency_keys as kept
where kept.tenant_id = :tenant_id::uuid and kept.command = 'run.create' and kept.key = :key::text
  and kept.run_id = :run_id::uuid

-- name: lock_creation
-- One creation at a time for a tenant that has a limit on it; the last lock that a creation takes.
select creation.kind
from tenantry.tenant_limits as creation
where creation.tenant_id = :tenant_id::uuid and creation.kind = 'create'
for no key update of creation

-- name: usage
-- How near the limits are: runs that wait, and runs of the last minute (by the time in their ids), neither counted further
-- than its limit; and when the oldest of those that fill the minute will have left it.
select
  (
    select count(*)
    from (
      select from tenantry.workflow_runs as run
      where run.tenant_id = :tenant_id::uuid and run.status = 'PENDING'
      limit :pending_runs::int
    ) as waiting
  ) as pending_runs,
  coalesce(recent.created, 0) as recent_runs,
  extract(epoch from recent.oldest_at + interval '1 minute' - tenantry.now())::float8 as free_in_s
from (
  select count(*) as created, min(counted.created_at) as oldest_at
  from (
    select run.created_at
    from tenantry.workflow_runs as run
    where run.tenant_id = :tenant_id::uuid
      and run.run_id >= tenantry.uuid7_floor(tenantry.now() - interval '1 minute')
    order by run.run_id desc
    limit :runs_per_minute::int
  ) as counted
) as recent

-- name: declared_structure
-- The structure that a declared version stood for when a run was first claimed under it.
select kept.structure_hash
from tenantry.workflow_definitions as kept
where kept.tenant_id = :tenant_id::uuid and kept.workflow_id = :workflow_id::text and kept.version = :version::text

-- name: insert_run
-- The run, PENDING: ready at once, or at its run_at.
insert into tenantry.workflow_runs (
  tenant_id, run_id, workflow_id, version, priority, rank, ready, available_at, input, config, event_sequence,
  created_at, updated_at, traceparent, tracestate
)
select
  :tenant_id::uuid, item.run_id, item.workflow_id, item.version, item.priority,
  due.at - item.priority * interval '60 seconds', due.at <= tenantry.now(), due.at,
  item.input::json, item.config::json, 1, tenantry.now(), tenantry.now(), item.traceparent, item.tracestate
from json_to_recordset(:items::text::json) as item (
  run_id uuid, workflow_id text, version text, priority smallint, run_at timestamptz, input text, config text,
  traceparent text, tracestate text
)
cross join lateral (select coalesce(item.run_at, tenantry.now()) as at) as due

-- name: insert_tags
-- One row a tag, so that a list by tag is an index scan under row-level security.
insert into tenantry.workflow_run_tags (tenant_id, tag, run_id)
select :tenant_id::uuid, item.tag, item.run_id
from json_to_recordset(:items::text::json) as item (tag text, run_id uuid)
on conflict (tenant_id, tag, run_id) do nothing

-- name: insert_event
-- The first event of the run's history.
insert into tenantry.outbox_events (tenant_id, run_id, sequence, type, payload, occurred_at)
select :tenant_id::uuid, item.run_id, 1, 'workflow:created', item.payload, tenantry.now()
from json_to_recordset(:items::text::json) as item (run_id uuid, payload json)
