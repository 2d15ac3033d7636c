-- name: key
-- The key with its tenant's standing, under that tenant's own row-level security. An unknown tenant and an unknown key are
-- the same: no row. The function's text is in the migrations (0006).
select held.secret_hash, held.scopes, held.is_usable, held.is_use_unrecorded, held.tenant_status
from tenantry.key_standing_v1(:tenant_id::uuid, :key_id::uuid) as held

-- name: tenant
-- The standing of the tenant that a token names.
select tenant.status as tenant_status
from tenantry.tenants as tenant
where tenant.tenant_id = :tenant_id::uuid

-- name: record_use
-- At most once a minute, and never waiting for another request that is writing the same.
with due as (
  select key.tenant_id, key.key_id
  from tenantry.api_keys as key
  where key.tenant_id = :tenant_id::uuid and key.key_id = :key_id::uuid
    and (key.last_used_at is null or key.last_used_at < tenantry.now() - interval '1 minute')
  for no key update of key skip locked
)
update tenantry.api_keys as key
set last_used_at = tenantry.now()
from due
where key.tenant_id = :tenant_id::uuid and key.tenant_id = due.tenant_id and key.key_id = due.key_id

-- name: session
-- A session of the console that has not run out, with the standing of the key that opened it, and the names to greet it by.
-- Revoking the key, or its end, is the end of its sessions.
select
  session.key_id, key.name as key_name, owner.name as tenant_name,
  held.scopes, held.is_usable, held.is_use_unrecorded, held.tenant_status
from tenantry.console_sessions as session
join tenantry.api_keys as key on key.tenant_id = :tenant_id::uuid and key.key_id = session.key_id
join tenantry.tenants as owner on owner.tenant_id = :tenant_id::uuid
cross join lateral tenantry.key_standing_v1(:tenant_id::uuid, session.key_id) as held
where session.tenant_id = :tenant_id::uuid and session.token_hash = :token_hash::bytea and session.expires_at > tenantry.now()
