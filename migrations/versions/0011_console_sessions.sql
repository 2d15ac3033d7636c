-- Who is signed in to the console. A browser holds the tenant's id and a random token; here lies the token's SHA-256 and the key
-- that the session was opened with: what the key may not do, or no longer, the session may not do either.
create table tenantry.console_sessions (
  tenant_id uuid not null default tenantry.current_tenant_id(),
  token_hash bytea not null,
  key_id uuid not null,
  created_at timestamptz not null default tenantry.now(),
  expires_at timestamptz not null,
  constraint console_sessions_pkey primary key (tenant_id, token_hash)
);
create index console_sessions_expiry on tenantry.console_sessions (tenant_id, expires_at);
