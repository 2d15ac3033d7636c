-- name: begin
-- Opens one of our own transactions that takes more than one message.
begin

-- name: commit
-- Ends one of our own transactions that takes more than one message.
commit

-- name: bind
-- Role and tenant of one of our own transactions, for this transaction only, in one statement.
select set_config('role', 'tenantry_tenant', true), set_config('tenantry.tenant_id', :tenant::text, true)

-- name: become_scheduler
-- role: tenantry_scheduler
-- The scheduler's role for this transaction, and no tenant.
select set_config('role', 'tenantry_scheduler', true), set_config('tenantry.tenant_id', '', true)

-- name: become_operator
-- role: tenantry_operator
-- The operator's role for this transaction, and no tenant.
select set_config('role', 'tenantry_operator', true), set_config('tenantry.tenant_id', '', true)

-- name: bind_tenant
-- Only the tenant: on a caller's transaction the caller's role stays.
select set_config('tenantry.tenant_id', :tenant::text, true)

-- name: standing
-- What a caller's transaction is bound to, and whether its role could read past the policies, holds one of ours that sees
-- across tenants, or may not work under the policies at all. Asks the catalogs only, so that a role that may nothing is told
-- without its transaction being aborted. Read back in a statement of its own: outside a transaction the setting is gone
-- again by now.
select
  nullif(current_setting('tenantry.tenant_id', true), '') as tenant,
  me.rolname as role,
  me.rolsuper as is_superuser,
  me.rolbypassrls as bypasses_rls,
  exists (
    select
    from pg_catalog.pg_roles as work
    where work.rolname = 'tenantry_tenant' and pg_has_role(me.oid, work.oid, 'USAGE')
  ) as may_work,
  exists (
    select
    from pg_catalog.pg_class as relation
    join pg_catalog.pg_namespace as namespace on namespace.oid = relation.relnamespace
    where namespace.nspname = 'tenantry'
      and relation.relkind in ('r', 'p')
      and (relation.relowner = me.oid or pg_has_role(me.oid, relation.relowner, 'USAGE'))
  ) as owns_tables,
  coalesce(
    (
      select array_agg(wide.rolname order by wide.rolname)
      from pg_catalog.pg_roles as wide
      where wide.rolname in ('tenantry_scheduler', 'tenantry_operator') and pg_has_role(me.oid, wide.oid, 'USAGE')
    ),
    '{}'
  )::text[] as inherited
from pg_catalog.pg_roles as me
where me.rolname = current_user

-- name: login
-- What a login may become: superuser, BYPASSRLS or owner, by itself or through any chain of memberships it could SET ROLE
-- to, and which of our roles it would hold without asking (an inheriting membership) or reaches only by a detour.
select
  me.rolname as role,
  me.rolsuper or coalesce(bool_or(reachable.rolsuper), false) as is_superuser,
  me.rolbypassrls or coalesce(bool_or(reachable.rolbypassrls), false) as bypasses_rls,
  coalesce(bool_or(reachable.rolname = 'tenantry_owner' or owned.owner is not null), false) as owns_tables,
  coalesce(
    array_agg(reachable.rolname order by reachable.rolname) filter (
      where reachable.rolname like 'tenantry\_%'
        and reachable.oid <> me.oid
        and (
          pg_has_role(me.oid, reachable.oid, 'USAGE')
          or not exists (
            select
            from pg_catalog.pg_auth_members as direct
            where direct.member = me.oid and direct.roleid = reachable.oid
          )
        )
    ),
    '{}'
  )::text[] as inherited
from pg_catalog.pg_roles as me
left join pg_catalog.pg_roles as reachable on pg_has_role(me.oid, reachable.oid, 'MEMBER')
left join (
  select distinct relation.relowner as owner
  from pg_catalog.pg_class as relation
  join pg_catalog.pg_namespace as namespace on namespace.oid = relation.relnamespace
  where namespace.nspname = 'tenantry'
) as owned on owned.owner = reachable.oid
where me.rolname = session_user
group by me.oid, me.rolname, me.rolsuper, me.rolbypassrls

-- name: has_schema
-- Whether the migration table is there.
select to_regclass('tenantry.alembic_version') is not null as is_migrated

-- name: revision
-- The revision of the schema.
select version_num from tenantry.alembic_version

-- name: bound
-- The tenant that the policies see, by whatever the product's version of the function goes, and whether anything can be
-- written. A setting that holds no UUID would be an error inside of that function, and abort the caller's transaction.
select
  case
    when coalesce(current_setting('tenantry.tenant_id', true), '') ~* '^(\{?[0-9a-f]{4}(-?[0-9a-f]{4}){7}\}?)?$'
    then tenantry.current_tenant_id()
  end as tenant,
  current_setting('transaction_read_only')::boolean as is_read_only
