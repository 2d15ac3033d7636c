-- API keys, as rows of their own tenant. A secret is stored only as its hash.

-- name: create_key
-- Times are the database's: a key made to last an hour lasts an hour whatever the clock of the caller says.
insert into tenantry.api_keys (tenant_id, key_id, name, secret_hash, scopes, expires_at)
values (
  :tenant_id::uuid, :key_id::uuid, :name::text, :secret_hash::bytea, :scopes::text[],
  coalesce(:expires_at::timestamptz, tenantry.now() + :expires_in::interval)
)
returning key_id, name, scopes, created_at, expires_at

-- name: list_keys
select key.key_id, key.name, key.scopes, key.created_at, key.expires_at, key.revoked_at, key.last_used_at
from tenantry.api_keys as key
where key.tenant_id = :tenant_id::uuid and (:after::uuid is null or key.key_id > :after::uuid)
order by key.key_id
limit :limit::int

-- name: revoke_key
-- A repeat keeps the time of the first revocation.
update tenantry.api_keys as key
set revoked_at = coalesce(key.revoked_at, tenantry.now())
where key.tenant_id = :tenant_id::uuid and key.key_id = :key_id::uuid
returning key.key_id

-- name: new_key_id
-- Keys are listed in the order they were made, so the database makes their ids.
select tenantry.uuid7() as key_id

-- name: expires_in_future
select :expires_at::timestamptz > tenantry.now() as future
