-- name: open
-- A session lasts by the database's clock, whatever the host's says.
insert into tenantry.console_sessions (tenant_id, token_hash, key_id, expires_at)
values (:tenant_id::uuid, :token_hash::bytea, :key_id::uuid, tenantry.now() + :lifetime::interval)

-- name: close
delete from tenantry.console_sessions as session
where session.tenant_id = :tenant_id::uuid and session.token_hash = :token_hash::bytea

-- name: drop_lapsed
-- Some of the sessions that ran out, without waiting for whoever clears away the same ones.
with lapsed as (
  select session.tenant_id, session.token_hash
  from tenantry.console_sessions as session
  where session.tenant_id = :tenant_id::uuid and session.expires_at <= tenantry.now()
  order by session.expires_at
  limit :limit::int
  for update of session skip locked
)
delete from tenantry.console_sessions as session
using lapsed
where session.tenant_id = :tenant_id::uuid and session.token_hash = lapsed.token_hash
