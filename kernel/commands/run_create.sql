-- name: admit
-- The tenant's standing and its limits on creation, and what the database makes for the run: its id and its time. The
-- function's text is in the migrations (0006).
select
  asked.run_id, asked.now, asked.tenant_status, asked.limited, asked.pending_runs, asked.runs_per_minute, asked.payload_bytes
from tenantry.creation_standing_v1(:tenant_id::uuid) as asked

-- name: reserve_key
-- Take the key for this run, or write nothing: a concurrent holder is waited for, however long its transaction lasts, and
-- what it left behind is read by find_key, a later statement. Inserted before anything is locked.
insert into tenantry.idempotency_keys (tenant_id, command, key, run_id, fingerprint, expires_at)
values (
  :tenant_id::uuid, 'run.create', :key::text, :run_id::uuid,
  sha256(convert_to(:request::text::jsonb::text, 'UTF8')), tenantry.now() + coalesce(:ttl::interval, tenantry.idempotency_ttl())
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
  expires_at = tenantry.now() + coalesce(:ttl::interval, tenantry.idempotency_ttl())
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

-- name: create
-- The run, PENDING (ready at once, or at its run_at), its tags and its first event. The function's text is in the
-- migrations (0013).
select tenantry.create_runs_v1(
  :tenant_id::uuid, :at::timestamptz, :runs::text::json, :tags::text::json
)
