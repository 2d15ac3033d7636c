-- name: violations
-- role: tenantry_owner
-- Whatever in the schema cannot be distributed by tenant: the rule and the object that breaks it.
with distributed as (
  select relation.oid, relation.relname
  from pg_catalog.pg_class as relation
  join pg_catalog.pg_namespace as namespace on namespace.oid = relation.relnamespace
  where namespace.nspname = 'tenantry'
    and relation.relkind in ('r', 'p')
    and relation.relname <> all(:reference_tables::text[])
),
tenants as (
  select attribute.attrelid as oid, attribute.attnum
  from pg_catalog.pg_attribute as attribute
  where attribute.attname = 'tenant_id' and not attribute.attisdropped
)
select 'has no tenant_id' as rule, format('tenantry.%I', distributed.relname) as object
from distributed
left join tenants on tenants.oid = distributed.oid
where tenants.oid is null
union all
select 'is a key without tenant_id', format('tenantry.%I', index_relation.relname)
from distributed
join pg_catalog.pg_index as index on index.indrelid = distributed.oid
join pg_catalog.pg_class as index_relation on index_relation.oid = index.indexrelid
left join tenants on tenants.oid = distributed.oid
where (index.indisunique or index.indisexclusion)
  and (tenants.attnum is null or tenants.attnum <> all(index.indkey::int2[]))
union all
select 'is a foreign key without tenant_id', format('tenantry.%I: %I', distributed.relname, key.conname)
from distributed
join pg_catalog.pg_constraint as key on key.conrelid = distributed.oid and key.contype = 'f'
join distributed as other on other.oid = key.confrelid
left join tenants as ours on ours.oid = distributed.oid
left join tenants as theirs on theirs.oid = other.oid
where not exists (
  select
  from unnest(key.conkey, key.confkey) as pair (ours, theirs)
  where pair.ours = ours.attnum and pair.theirs = theirs.attnum
)
union all
select 'has a subquery', format('tenantry.%I: policy %I', relation.relname, policy.polname)
from pg_catalog.pg_policy as policy
join pg_catalog.pg_class as relation on relation.oid = policy.polrelid
join pg_catalog.pg_namespace as namespace on namespace.oid = relation.relnamespace
where namespace.nspname = 'tenantry'
  and (policy.polqual::text like '%SUBLINK%' or policy.polwithcheck::text like '%SUBLINK%')
union all
select 'is a trigger', format('tenantry.%I: %I', relation.relname, trigger.tgname)
from pg_catalog.pg_trigger as trigger
join pg_catalog.pg_class as relation on relation.oid = trigger.tgrelid
join pg_catalog.pg_namespace as namespace on namespace.oid = relation.relnamespace
where namespace.nspname = 'tenantry' and not trigger.tgisinternal
order by 1, 2

-- name: plan
-- role: tenantry_owner
-- The statements that spread the schema over a cluster, in their order: what policies and defaults call first, then what
-- every node holds whole, then the tables, together by tenant, then the functions that are called with a tenant, and last
-- the logins, whose transaction-local settings have to reach the nodes. The first table is the one the others lie beside.
select planned.statement
from (
  select
    case when function.proargnames[1] = 'tenant' then 4 else 1 end as step,
    function.oid::regprocedure::text as name,
    case
      when function.proargnames[1] = 'tenant'
      then format(
        'select create_distributed_function(%L, %L, colocate_with := %L)', function.oid::regprocedure, 'tenant',
        'tenantry.workflow_runs'
      )
      else format('select create_distributed_function(%L)', function.oid::regprocedure)
    end as statement
  from pg_catalog.pg_proc as function
  join pg_catalog.pg_namespace as namespace on namespace.oid = function.pronamespace
  where namespace.nspname = 'tenantry' and function.prokind = 'f'
  union all
  select
    case when relation.relname = any(:reference_tables::text[]) then 2 else 3 end,
    case when relation.relname = 'workflow_runs' then '' else relation.relname::text end,
    case
      when relation.relname = any(:reference_tables::text[])
      then format('select create_reference_table(%L)', format('tenantry.%I', relation.relname))
      else format(
        'select create_distributed_table(%L, %L, colocate_with := %L)', format('tenantry.%I', relation.relname), 'tenant_id',
        case when relation.relname = 'workflow_runs' then 'none' else 'tenantry.workflow_runs' end
      )
    end
  from pg_catalog.pg_class as relation
  join pg_catalog.pg_namespace as namespace on namespace.oid = relation.relnamespace
  where namespace.nspname = 'tenantry' and relation.relkind in ('r', 'p') and not relation.relispartition
  union all
  select
    5,
    login.rolname,
    format('alter role %I in database %I set citus.propagate_set_commands = %L', login.rolname, current_database(), 'local')
  from pg_catalog.pg_roles as login
  where login.rolname = any(:logins::text[])
) as planned
order by planned.step, planned.name

-- name: cluster
-- role: tenantry_owner
-- Whether this server has what distributes tables.
select exists (select from pg_catalog.pg_extension as installed where installed.extname = 'citus') as is_there
