-- Keys of commands that act on one run and keep what they answered. run.create has statements of its own: it answers the run
-- as it is now, and shares its keys with tenantry.enqueue().

-- name: reserve
-- Take the key, or write nothing: a concurrent holder is waited for, however long its transaction lasts, and what it left
-- behind is read by `find`, a later statement. Inserted before anything is locked.
insert into tenantry.idempotency_keys (tenant_id, command, key, run_id, fingerprint, expires_at)
values (
  :tenant_id::uuid, :command::text, :key::text, :run_id::uuid,
  sha256(convert_to(:request::text::jsonb::text, 'UTF8')), tenantry.now() + coalesce(:ttl::interval, tenantry.idempotency_ttl())
)
on conflict (tenant_id, command, key) do nothing
returning key

-- name: find
-- Who has the key: the same request or another, what it was answered, and whether the key has had its time (never before its
-- run is over).
select
  kept.fingerprint = sha256(convert_to(:request::text::jsonb::text, 'UTF8')) as same_request,
  kept.expires_at,
  kept.expires_at <= tenantry.now()
    and (run.run_id is null or run.status in ('COMPLETED', 'FAILED', 'CANCELLED')) as expired,
  kept.result::text as result
from tenantry.idempotency_keys as kept
left join tenantry.workflow_runs as run on run.tenant_id = :tenant_id::uuid and run.run_id = kept.run_id
where kept.tenant_id = :tenant_id::uuid and kept.command = :command::text and kept.key = :key::text

-- name: take_over
-- Take an expired key; guarded by the expiry that was seen, so that of two takers one writes no row and looks again.
update tenantry.idempotency_keys as kept
set
  run_id = :run_id::uuid,
  fingerprint = sha256(convert_to(:request::text::jsonb::text, 'UTF8')),
  result = null,
  created_at = tenantry.now(),
  expires_at = tenantry.now() + coalesce(:ttl::interval, tenantry.idempotency_ttl())
where kept.tenant_id = :tenant_id::uuid and kept.command = :command::text and kept.key = :key::text
  and kept.expires_at = :seen_expiry::timestamptz
returning kept.key

-- name: keep
-- What the request was answered, for its repeats.
update tenantry.idempotency_keys as kept
set result = :result::text::json
where kept.tenant_id = :tenant_id::uuid and kept.command = :command::text and kept.key = :key::text

-- name: release
-- A refused request does not use up its key.
delete from tenantry.idempotency_keys as kept
where kept.tenant_id = :tenant_id::uuid and kept.command = :command::text and kept.key = :key::text
