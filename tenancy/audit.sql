-- What `tenancy/audit.py` asks of the catalogs. Each check is a section named as its code and yields (object, role, reason, fix),
-- role being the one concerned, null when it does not matter who; rows alike but for their roles become one finding, with
-- those roles for {roles} in its fix. They run as whoever connects: the catalogs are open to all.
-- `roles` are the audited ones and all they may become, without superusers; `tables` the audited schemas' and their partitions.

-- name: opening
-- role: tenantry_owner
-- From here on only pg_catalog's names are found, and the version of the server.
select
  set_config('search_path', 'pg_catalog', true) as search_path,
  current_setting('server_version_num')::int as version_number

-- name: reachable_roles
-- role: tenantry_owner
-- Every audited role and every one that it may become by any chain of memberships; a superuser is everybody and left out.
select distinct reached.rolname::text as role
from pg_catalog.pg_roles as audited
join pg_catalog.pg_roles as reached
  on reached.oid = audited.oid or pg_has_role(audited.oid, reached.oid, 'MEMBER')
where audited.rolname = any(:audited::text[])
  and not audited.rolsuper
  and not reached.rolsuper
order by 1

-- name: audited_tables
-- role: tenantry_owner
-- The tables of the audited schemas and their partitions wherever they are; what an extension brought is the extension's.
with recursive audited (oid) as (
  select relation.oid
  from pg_catalog.pg_class as relation
  join pg_catalog.pg_namespace as namespace on namespace.oid = relation.relnamespace
  where namespace.nspname = any(:schemas::text[])
    and relation.relkind in ('r', 'p')
    and not exists (
      select
      from pg_catalog.pg_depend as dependency
      where dependency.classid = 'pg_class'::regclass and dependency.objid = relation.oid and dependency.deptype = 'e'
    )
  union
  select inheritance.inhrelid
  from audited
  join pg_catalog.pg_inherits as inheritance on inheritance.inhparent = audited.oid
  join pg_catalog.pg_class as child on child.oid = inheritance.inhrelid and child.relkind in ('r', 'p')
)
select audited.oid::bigint as oid
from audited
order by 1

-- name: policies
-- role: tenantry_owner
-- Every policy of the audited tables, its expressions as the catalogs keep them and the number of the tenant's column.
select
  policy.oid::bigint as policy,
  policy.polpermissive as is_permissive,
  policy.polqual::text as using_tree,
  policy.polwithcheck::text as check_tree,
  coalesce(tenant.attnum, 0) as tenant
from pg_catalog.pg_policy as policy
left join pg_catalog.pg_attribute as tenant
  on tenant.attrelid = policy.polrelid and tenant.attname = :tenant_column::text and not tenant.attisdropped
where policy.polrelid = any(:tables::oid[])
order by 1

-- name: equalities
-- role: tenantry_owner
-- The operators that are called `=`.
select operator.oid::text as operator
from pg_catalog.pg_operator as operator
where operator.oprname = '='

-- name: role_unknown
-- role: tenantry_owner
-- A name that is nobody's would be found harmless.
select
  wanted.name as object,
  null::text as role,
  'there is no such role: what it may do cannot be audited' as reason,
  'name an existing role, or let `tenantry db migrate` create Tenantry''s own' as fix
from unnest(:audited::text[]) as wanted (name)
where not exists (select from pg_catalog.pg_roles as found where found.rolname = wanted.name)

-- name: schema_unknown
-- role: tenantry_owner
-- A schema that is not there would be found clean.
select
  wanted.name as object,
  null::text as role,
  'there is no such schema: nothing in it can be audited' as reason,
  'name an existing schema, or let `tenantry db migrate` create Tenantry''s own' as fix
from unnest(:schemas::text[]) as wanted (name)
where not exists (select from pg_catalog.pg_namespace as found where found.nspname = wanted.name)

-- name: role_superuser
-- role: tenantry_owner
-- No policy applies to a superuser, nor to who may become one.
select
  audited.rolname::text as object,
  null::text as role,
  case
    when audited.rolsuper then 'is a superuser: no policy applies to it'
    else format('may become %I, a superuser, to whom no policy applies', reached.rolname)
  end as reason,
  case
    when audited.rolsuper then format('alter role %I nosuperuser', audited.rolname)
    else format('revoke %I from %I, or from the role between the two', reached.rolname, audited.rolname)
  end as fix
from pg_catalog.pg_roles as audited
join pg_catalog.pg_roles as reached
  on reached.rolsuper
  and (reached.oid = audited.oid or (not audited.rolsuper and pg_has_role(audited.oid, reached.oid, 'MEMBER')))
where audited.rolname = any(:audited::text[])
order by audited.rolname, reached.rolname

-- name: role_bypassrls
-- role: tenantry_owner
-- BYPASSRLS of the role or of one that it may become.
select
  audited.rolname::text as object,
  null::text as role,
  case
    when audited.oid = reached.oid then 'has BYPASSRLS: no policy applies to it'
    else format('may become %I, which has BYPASSRLS', reached.rolname)
  end as reason,
  case
    when audited.oid = reached.oid then format('alter role %I nobypassrls', audited.rolname)
    else format('revoke %I from %I, or from the role between the two', reached.rolname, audited.rolname)
  end as fix
from pg_catalog.pg_roles as audited
join pg_catalog.pg_roles as reached
  on reached.rolbypassrls
  and not reached.rolsuper
  and pg_has_role(audited.oid, reached.oid, 'MEMBER')
where audited.rolname = any(:audited::text[])
  and not audited.rolsuper
order by audited.rolname, reached.rolname

-- name: role_owner
-- role: tenantry_owner
-- An owner takes policies off, or FORCE, which alone binds it; the schema's owner drops what it likes.
select
  audited.rolname::text as object,
  null::text as role,
  format(
    '%s %s (%s in all): an owner may switch row-level security off',
    case
      when owned.owner = audited.oid then 'owns'
      when pg_has_role(audited.oid, owned.owner, 'USAGE') then format('inherits from %I, which owns', owner.rolname)
      else format('may become %I, which owns', owner.rolname)
    end,
    owned.first,
    owned.total
  ) as reason,
  case
    when owned.owner = audited.oid then format('give %s to a role that nobody logs in as', owned.first)
    else format('revoke %I from %I, or from the role between the two', owner.rolname, audited.rolname)
  end as fix
from (
  select held.owner, min(held.name) as first, count(*) as total
  from (
    select relation.relowner as owner, format('%I.%I', namespace.nspname, relation.relname) as name
    from pg_catalog.pg_class as relation
    join pg_catalog.pg_namespace as namespace on namespace.oid = relation.relnamespace
    where relation.oid = any(:tables::oid[])
    union all
    select namespace.nspowner, format('schema %I', namespace.nspname)
    from pg_catalog.pg_namespace as namespace
    where namespace.nspname = any(:schemas::text[])
    union all
    -- Whoever replaces what a policy calls replaces the policy.
    select called.proowner, format('function %I.%I, which a policy calls', namespace.nspname, called.proname)
    from pg_catalog.pg_policy as policy
    join pg_catalog.pg_depend as dependency
      on dependency.classid = 'pg_policy'::regclass
      and dependency.objid = policy.oid
      and dependency.refclassid = 'pg_proc'::regclass
    join pg_catalog.pg_proc as called on called.oid = dependency.refobjid
    join pg_catalog.pg_namespace as namespace on namespace.oid = called.pronamespace
    where policy.polrelid = any(:tables::oid[])
  ) as held
  group by held.owner
) as owned
join pg_catalog.pg_roles as owner on owner.oid = owned.owner and not owner.rolsuper
join pg_catalog.pg_roles as audited on pg_has_role(audited.oid, owned.owner, 'MEMBER')
where audited.rolname = any(:audited::text[])
  and not audited.rolsuper
order by audited.rolname, owner.rolname

-- name: role_powers
-- role: tenantry_owner
-- Attributes and memberships by which a role gives itself, or reads, what no policy guards.
select
  audited.rolname::text as object,
  null::text as role,
  format('%s, which %s', power.name, power.means) as reason,
  power.fix
from pg_catalog.pg_roles as audited
cross join lateral (
  select
    case when reached.oid = audited.oid then 'has ' else format('may become %I, which has ', reached.rolname) end
      || attribute.name as name,
    attribute.means,
    format('alter role %I no%s', reached.rolname, lower(attribute.name)) as fix
  from pg_catalog.pg_roles as reached
  cross join lateral (
    values
      ('CREATEROLE', reached.rolcreaterole, 'lets it give itself other roles'),
      ('REPLICATION', reached.rolreplication, 'lets it read the log with every tenant''s changes')
  ) as attribute (name, is_set, means)
  where attribute.is_set
    and not reached.rolsuper
    and pg_has_role(audited.oid, reached.oid, 'MEMBER')
  union all
  select
    format('may become %I', reached.rolname),
    predefined.means,
    format('revoke %I from %I, or from the role between the two', reached.rolname, audited.rolname)
  from pg_catalog.pg_roles as reached
  join (
    values
      ('pg_read_server_files', 'reaches the server''s files past every policy'),
      ('pg_write_server_files', 'reaches the server''s files past every policy'),
      ('pg_execute_server_program', 'reaches the server''s files past every policy'),
      ('pg_read_all_stats', 'reads every session''s statements, with the values that stand in them')
  ) as predefined (name, means) on predefined.name = reached.rolname
  where pg_has_role(audited.oid, reached.oid, 'MEMBER')
  union all
  -- pg_stats hides what policies hide, the catalog under it hides nothing: pg_read_all_data is among those who read it.
  select
    case when reached.oid = audited.oid then 'may read ' else format('may become %I, which may read ', reached.rolname) end
      || 'pg_statistic',
    'shows the most common values of every tenant''s columns',
    case
      when reached.oid = audited.oid and not pg_has_role(audited.oid, 'pg_read_all_data', 'USAGE')
      then format('revoke select on pg_catalog.pg_statistic from %I', audited.rolname)
      else format('revoke %I from %I, or from the role between the two',
        case when reached.oid = audited.oid then 'pg_read_all_data' else reached.rolname end, audited.rolname)
    end
  from pg_catalog.pg_roles as reached
  where has_any_column_privilege(reached.oid, 'pg_catalog.pg_statistic'::regclass, 'SELECT')
    and not reached.rolsuper
    and pg_has_role(audited.oid, reached.oid, 'MEMBER')
    -- Said of the role itself, it need not be said of those from which it has it.
    and (
      reached.oid = audited.oid
      or not has_any_column_privilege(audited.oid, 'pg_catalog.pg_statistic'::regclass, 'SELECT')
    )
) as power
where audited.rolname = any(:audited::text[])
  and not audited.rolsuper
order by audited.rolname, power.name

-- name: role_membership
-- role: tenantry_owner
-- Who is more of Tenantry's roles than meant. Its logins hold theirs by SET ROLE only: a login that inherits would read unbound.
select
  audited.rolname::text as object,
  null::text as role,
  case
    when format('%s %s', audited.rolname, held.rolname) = any(:intended::text[])
    then format('inherits %I, so a connection has its rights before it asked for them', held.rolname)
    else format('may become %I, which it is not meant to', held.rolname)
  end as reason,
  case
    when format('%s %s', audited.rolname, held.rolname) <> all(:intended::text[])
    then format('revoke %I from %I, or from the role between the two', held.rolname, audited.rolname)
    when current_setting('server_version_num')::int >= 160000
    then format('grant %I to %I with inherit false', held.rolname, audited.rolname)
    else format('alter role %I noinherit', audited.rolname)
  end as fix
from pg_catalog.pg_roles as audited
join pg_catalog.pg_roles as held
  on held.oid <> audited.oid
  and held.rolname = any(:own_roles::text[])
  and pg_has_role(audited.oid, held.oid, 'MEMBER')
where audited.rolname = any(:audited::text[])
  and not audited.rolsuper
  and (
    format('%s %s', audited.rolname, held.rolname) <> all(:intended::text[])
    or pg_has_role(audited.oid, held.oid, 'USAGE')
  )
  -- A product's own role is to be an inheriting member of the tenants' role, and of no other.
  and (audited.rolname = any(:own_roles::text[]) or held.rolname <> 'tenantry_tenant')
order by audited.rolname, held.rolname

-- name: rls_off
-- role: tenantry_owner
-- Without row-level security no policy counts. Partitions have a check of their own.
select
  format('%I.%I', namespace.nspname, relation.relname) as object,
  null::text as role,
  'row-level security is off: whoever may read the table reads every tenant''s rows' as reason,
  format('alter table %I.%I enable row level security, force row level security', namespace.nspname, relation.relname)
    as fix
from pg_catalog.pg_class as relation
join pg_catalog.pg_namespace as namespace on namespace.oid = relation.relnamespace
where relation.oid = any(:tables::oid[])
  and not relation.relrowsecurity
  and not exists (
    select
    from pg_catalog.pg_inherits as inheritance
    where inheritance.inhrelid = relation.oid and inheritance.inhparent = any(:tables::oid[])
  )
order by 1

-- name: rls_not_forced
-- role: tenantry_owner
-- Without FORCE the owner, and every view and function of its, reads past the policies.
select
  format('%I.%I', namespace.nspname, relation.relname) as object,
  null::text as role,
  'row-level security is not forced: the owner and what runs as the owner read every tenant''s rows' as reason,
  format('alter table %I.%I force row level security', namespace.nspname, relation.relname) as fix
from pg_catalog.pg_class as relation
join pg_catalog.pg_namespace as namespace on namespace.oid = relation.relnamespace
where relation.oid = any(:tables::oid[])
  and relation.relrowsecurity
  and not relation.relforcerowsecurity
  and not exists (
    select
    from pg_catalog.pg_inherits as inheritance
    where inheritance.inhrelid = relation.oid and inheritance.inhparent = any(:tables::oid[])
  )
order by 1

-- name: partition_unprotected
-- role: tenantry_owner
-- The parent's policies hold for who asks the parent; a partition asked by its own name has its own, or none.
select
  format('%I.%I', namespace.nspname, relation.relname) as object,
  null::text as role,
  format(
    'row-level security is %s on this partition: asked by its own name it shows every tenant''s rows',
    case when relation.relrowsecurity then 'not forced' else 'off' end
  ) as reason,
  format('alter table %I.%I enable row level security, force row level security', namespace.nspname, relation.relname)
    as fix
from pg_catalog.pg_class as relation
join pg_catalog.pg_namespace as namespace on namespace.oid = relation.relnamespace
where relation.oid = any(:tables::oid[])
  and not (relation.relrowsecurity and relation.relforcerowsecurity)
  and exists (
    select
    from pg_catalog.pg_inherits as inheritance
    where inheritance.inhrelid = relation.oid and inheritance.inhparent = any(:tables::oid[])
  )
order by 1

-- name: tenant_column_missing
-- role: tenantry_owner
-- Rows that name no tenant belong to everybody; but a table to which tenant columns refer is that of the tenants.
select
  format('%I.%I', namespace.nspname, relation.relname) as object,
  null::text as role,
  format('has no column %s: its rows are nobody''s and everybody''s', :tenant_column::text) as reason,
  format('alter table %I.%I add column %I uuid not null', namespace.nspname, relation.relname, :tenant_column::text)
    as fix
from pg_catalog.pg_class as relation
join pg_catalog.pg_namespace as namespace on namespace.oid = relation.relnamespace
where relation.oid = any(:tables::oid[])
  and not exists (
    select
    from pg_catalog.pg_attribute as attribute
    where attribute.attrelid = relation.oid
      and attribute.attname = :tenant_column::text
      and attribute.attnum > 0
      and not attribute.attisdropped
  )
  and not exists (
    select
    from pg_catalog.pg_constraint as key
    join pg_catalog.pg_attribute as naming
      on naming.attrelid = key.conrelid and naming.attname = :tenant_column::text and not naming.attisdropped
    where key.contype = 'f'
      and key.confrelid = relation.oid
      and key.conrelid = any(:tables::oid[])
      and key.conkey = array[naming.attnum]
  )
order by 1

-- name: tenant_column_nullable
-- role: tenantry_owner
-- A row without a tenant is hidden from all, or shown to all by a policy that means well.
select
  format('%I.%I', namespace.nspname, relation.relname) as object,
  null::text as role,
  format('%s may be null: a row without a tenant belongs to nobody', :tenant_column::text) as reason,
  format(
    'alter table %I.%I alter column %I set not null', namespace.nspname, relation.relname, :tenant_column::text
  ) as fix
from pg_catalog.pg_class as relation
join pg_catalog.pg_namespace as namespace on namespace.oid = relation.relnamespace
join pg_catalog.pg_attribute as attribute
  on attribute.attrelid = relation.oid
  and attribute.attname = :tenant_column::text
  and attribute.attnum > 0
  and not attribute.attisdropped
where relation.oid = any(:tables::oid[])
  and not attribute.attnotnull
order by 1

-- name: policy_missing
-- role: tenantry_owner
-- No permissive policy: nobody reads the table until somebody helps himself. A partition may do without.
select
  format('%I.%I', namespace.nspname, relation.relname) as object,
  null::text as role,
  'has no permissive policy: nothing says which rows are whose' as reason,
  format(
    'create policy tenant_isolation on %I.%I using (%I = …) with check (%I = …), with the bound tenant for the dots',
    namespace.nspname, relation.relname, :tenant_column::text, :tenant_column::text
  ) as fix
from pg_catalog.pg_class as relation
join pg_catalog.pg_namespace as namespace on namespace.oid = relation.relnamespace
where relation.oid = any(:tables::oid[])
  and not exists (
    select
    from pg_catalog.pg_policy as policy
    where policy.polrelid = relation.oid and policy.polpermissive
  )
  and not exists (
    select
    from pg_catalog.pg_inherits as inheritance
    where inheritance.inhrelid = relation.oid and inheritance.inhparent = any(:tables::oid[])
  )
order by 1

-- name: policy_command_missing
-- role: tenantry_owner
-- A command granted without a policy finds no row and says nothing; the next policy is then written in a hurry.
select
  format('%I.%I', namespace.nspname, relation.relname) as object,
  who.rolname::text as role,
  format('granted, and covered by no permissive policy: %s', string_agg(command.name, ', ' order by command.place))
    as reason,
  format('create a policy for each on %I.%I, or revoke %s on it', namespace.nspname, relation.relname,
    string_agg(lower(command.name), ', ' order by command.place)) as fix
from pg_catalog.pg_class as relation
join pg_catalog.pg_namespace as namespace on namespace.oid = relation.relnamespace
cross join pg_catalog.pg_roles as who
cross join (
  values (1, 'SELECT', 'r'), (2, 'INSERT', 'a'), (3, 'UPDATE', 'w'), (4, 'DELETE', 'd')
) as command (place, name, letter)
where relation.oid = any(:tables::oid[])
  and who.rolname = any(:roles::text[])
  and relation.relrowsecurity
  and not pg_has_role(who.oid, relation.relowner, 'USAGE')
  and case
    when command.name = 'DELETE' then has_table_privilege(who.oid, relation.oid, 'DELETE')
    else has_any_column_privilege(who.oid, relation.oid, command.name)
  end
  and exists (
    select
    from pg_catalog.pg_policy as policy
    where policy.polrelid = relation.oid and policy.polpermissive
  )
  and not exists (
    select
    from pg_catalog.pg_policy as policy
    cross join unnest(policy.polroles) as named (oid)
    where policy.polrelid = relation.oid
      and policy.polpermissive
      and policy.polcmd::text in ('*', command.letter)
      and case when named.oid = 0 then true else pg_has_role(who.oid, named.oid, 'USAGE') end
  )
group by namespace.nspname, relation.relname, who.rolname
order by 1, 2

-- name: policy_without_check
-- role: tenantry_owner
-- What may be written is said in words, or it follows whatever USING becomes.
select
  format('%I.%I: policy %I', namespace.nspname, relation.relname, policy.polname) as object,
  null::text as role,
  'has no WITH CHECK: what may be written follows what may be seen, and changes with it unseen' as reason,
  format(
    'alter policy %I on %I.%I with check (%s)',
    policy.polname, namespace.nspname, relation.relname,
    coalesce(nullif(pg_get_expr(policy.polqual, policy.polrelid), 'true'), format('%I = …', :tenant_column::text))
  ) as fix
from pg_catalog.pg_policy as policy
join pg_catalog.pg_class as relation on relation.oid = policy.polrelid
join pg_catalog.pg_namespace as namespace on namespace.oid = relation.relnamespace
where relation.oid = any(:tables::oid[])
  and policy.polcmd in ('*', 'a', 'w')
  and policy.polwithcheck is null
order by 1

-- name: policy_open
-- role: tenantry_owner
-- A permissive policy of an audited role that is true for every row, or does not look at the tenant, and that no restrictive one
-- narrows. `reach` is what the role may do with the table: an exception holds for so much and no more.
select
  format('%I.%I: policy %I', namespace.nspname, relation.relname, policy.polname) as object,
  who.rolname::text as role,
  case
    when bool_or(side.is_true) then format('its %s is always true: every tenant''s rows pass', string_agg(side.name, ' and its ' order by side.name))
    else format('its %s does not look at %s', string_agg(side.name, ' and its ' order by side.name), :tenant_column::text)
  end as reason,
  format('alter policy %I on %I.%I so that it compares %I with the bound tenant, or drop it',
    policy.polname, namespace.nspname, relation.relname, :tenant_column::text) as fix,
  array(
    select format('%s %s', lower(privilege.name), attribute.attname)
    from pg_catalog.pg_attribute as attribute
    cross join (values ('SELECT'), ('INSERT'), ('UPDATE')) as privilege (name)
    where attribute.attrelid = relation.oid
      and attribute.attnum > 0
      and not attribute.attisdropped
      and has_column_privilege(who.oid, relation.oid, attribute.attnum, privilege.name)
    union all
    select 'delete'
    where has_table_privilege(who.oid, relation.oid, 'DELETE')
  ) as reach
from pg_catalog.pg_policy as policy
join pg_catalog.pg_class as relation on relation.oid = policy.polrelid
join pg_catalog.pg_namespace as namespace on namespace.oid = relation.relnamespace
join json_to_recordset(:open_sides::text::json) as side (policy bigint, name text, is_true boolean)
  on side.policy = policy.oid
join pg_catalog.pg_roles as who on who.rolname = any(:roles::text[])
where relation.oid = any(:tables::oid[])
  and exists (
    select
    from unnest(policy.polroles) as named (oid)
    where case when named.oid = 0 then true else pg_has_role(who.oid, named.oid, 'USAGE') end
  )
  and not exists (
    select
    from pg_catalog.pg_policy as narrow
    cross join unnest(narrow.polroles) as named (oid)
    where narrow.oid = any(:narrowing::oid[])
      and narrow.polrelid = relation.oid
      and narrow.polcmd in ('*', policy.polcmd)
      and case when named.oid = 0 then true else pg_has_role(who.oid, named.oid, 'USAGE') end
  )
group by namespace.nspname, relation.relname, relation.oid, policy.polname, who.oid, who.rolname
order by 1, 2

-- name: policy_alternative
-- role: tenantry_owner
-- Rows pass otherwise than by being the tenant's, in `ways` that the policy's tree shows. Usual is
-- `current_setting(…) is null or …`. Policies that `policy_open` finds have no need of this.
select
  format('%I.%I: policy %I', namespace.nspname, relation.relname, policy.polname) as object,
  null::text as role,
  format('%s lets rows pass without the equality of %s', found.ways, :tenant_column::text) as reason,
  format(
    'alter policy %I on %I.%I to the equality alone; who must see more gets a policy and a role of its own',
    policy.polname, namespace.nspname, relation.relname
  ) as fix
from json_to_recordset(:alternatives::text::json) as found (policy bigint, ways text)
join pg_catalog.pg_policy as policy on policy.oid = found.policy
join pg_catalog.pg_class as relation on relation.oid = policy.polrelid
join pg_catalog.pg_namespace as namespace on namespace.oid = relation.relnamespace
where exists (
    select
    from unnest(policy.polroles) as named (oid)
    left join pg_catalog.pg_roles as who on who.rolname = any(:roles::text[])
    where case when named.oid = 0 then true else pg_has_role(who.oid, named.oid, 'USAGE') end
  )
  and not exists (
    select
    from pg_catalog.pg_policy as narrow
    where narrow.oid = any(:narrowing::oid[])
      and narrow.polrelid = policy.polrelid
      and narrow.polcmd in ('*', policy.polcmd)
      and narrow.polroles = array[0::oid]
  )
order by 1

-- name: policy_by_function
-- role: tenantry_owner
-- Rows pass by what a function makes of their tenant, which no catalog tells.
select
  format('%I.%I: policy %I', namespace.nspname, relation.relname, policy.polname) as object,
  null::text as role,
  format('%s decides which rows pass: what it does with %s cannot be audited', found.ways, :tenant_column::text) as reason,
  format(
    'alter policy %I on %I.%I to the equality alone; a function is to return the bound tenant and to be given none',
    policy.polname, namespace.nspname, relation.relname
  ) as fix
from json_to_recordset(:by_function::text::json) as found (policy bigint, ways text)
join pg_catalog.pg_policy as policy on policy.oid = found.policy
join pg_catalog.pg_class as relation on relation.oid = policy.polrelid
join pg_catalog.pg_namespace as namespace on namespace.oid = relation.relnamespace
where exists (
    select
    from unnest(policy.polroles) as named (oid)
    left join pg_catalog.pg_roles as who on who.rolname = any(:roles::text[])
    where case when named.oid = 0 then true else pg_has_role(who.oid, named.oid, 'USAGE') end
  )
  and not exists (
    select
    from pg_catalog.pg_policy as narrow
    where narrow.oid = any(:narrowing::oid[])
      and narrow.polrelid = policy.polrelid
      and narrow.polcmd in ('*', policy.polcmd)
      and narrow.polroles = array[0::oid]
  )
order by 1

-- name: policy_unindexable
-- role: tenantry_owner
-- What keeps the policy's comparison from being the condition of an index, or has it computed row by row.
select
  format('%I.%I: policy %I', namespace.nspname, relation.relname, policy.polname) as object,
  null::text as role,
  format('cannot use an index by tenant: %s', string_agg(hindrance.text, ', ' order by hindrance.text)) as reason,
  format(
    'alter policy %I on %I.%I using (%I = f()), f() stable, without COALESCE and without IN or EXISTS',
    policy.polname, namespace.nspname, relation.relname, :tenant_column::text
  ) as fix
from pg_catalog.pg_policy as policy
join pg_catalog.pg_class as relation on relation.oid = policy.polrelid
join pg_catalog.pg_namespace as namespace on namespace.oid = relation.relnamespace
join pg_catalog.pg_attribute as tenant
  on tenant.attrelid = relation.oid and tenant.attname = :tenant_column::text and not tenant.attisdropped
cross join lateral (
  select 'COALESCE is taken for leaky' as text
  where policy.polqual::text ~ '\{COALESCE(EXPR)? '
  union all
  -- A scalar one, `(select …)`, is computed once and then compared like a parameter.
  select 'it has a subquery'
  where policy.polqual::text ~ '\{SUBLINK :subLinkType (?!4 )'
  union all
  select format('%s is wrapped in a cast or function', :tenant_column::text)
  where policy.polqual::text ~ format(
    '\{(COERCEVIAIO :arg|FUNCEXPR [^{}]*:args \() ?\{(RELABELTYPE :arg \{)?VAR :varno 1 :varattno %s ', tenant.attnum
  )
  union all
  select distinct format('%s() is volatile', called.proname)
  from regexp_matches(policy.polqual::text, ':(?:funcid|opfuncid) (\d+)', 'g') as found (ids)
  join pg_catalog.pg_proc as called on called.oid = found.ids[1]::oid and called.provolatile = 'v'
) as hindrance
where relation.oid = any(:tables::oid[])
group by namespace.nspname, relation.relname, policy.polname
order by 1

-- name: tenant_index_missing
-- role: tenantry_owner
-- Every statement under the policy asks for one tenant: without an index that starts with it, by reading all of them.
select
  format('%I.%I', namespace.nspname, relation.relname) as object,
  null::text as role,
  format('no index starts with %s: every statement reads past all tenants'' rows', :tenant_column::text) as reason,
  format('create index on %I.%I (%I, …)', namespace.nspname, relation.relname, :tenant_column::text) as fix
from pg_catalog.pg_class as relation
join pg_catalog.pg_namespace as namespace on namespace.oid = relation.relnamespace
join pg_catalog.pg_attribute as tenant
  on tenant.attrelid = relation.oid and tenant.attname = :tenant_column::text and not tenant.attisdropped
where relation.oid = any(:tables::oid[])
  and not exists (
    select
    from pg_catalog.pg_index as index
    where index.indrelid = relation.oid
      and index.indkey[0] = tenant.attnum
      and index.indpred is null
      and index.indisvalid
  )
order by 1

-- name: key_without_tenant
-- role: tenantry_owner
-- A key over all tenants tells each of the others' values, and makes an upsert meet a row that it may not see.
-- Surrogate keys, made-up values of uuid, identity or serial columns, are left out where the caller accepts them.
select
  format('%I.%I: %s %I', namespace.nspname, relation.relname,
    case when index.indisprimary then 'primary key' else 'unique' end, index_relation.relname) as object,
  null::text as role,
  format('does not hold %s: a value taken by one tenant is refused to, and so shown to, the others', :tenant_column::text)
    as reason,
  format('make it a key of (%I, …)', :tenant_column::text) as fix
from pg_catalog.pg_index as index
join pg_catalog.pg_class as index_relation on index_relation.oid = index.indexrelid
join pg_catalog.pg_class as relation on relation.oid = index.indrelid
join pg_catalog.pg_namespace as namespace on namespace.oid = relation.relnamespace
join pg_catalog.pg_attribute as tenant
  on tenant.attrelid = relation.oid and tenant.attname = :tenant_column::text and not tenant.attisdropped
where relation.oid = any(:tables::oid[])
  and (index.indisunique or index.indisexclusion)
  and not exists (
    select
    from generate_series(0, index.indnkeyatts - 1) as place (number)
    where index.indkey[place.number] = tenant.attnum
  )
  -- A partition's index is its parent's.
  and not exists (select from pg_catalog.pg_inherits as inheritance where inheritance.inhrelid = index.indexrelid)
  -- A surrogate has no meaning that a tenant could ask for: its values are made up, one by one.
  and not (
    :surrogates_accepted::boolean
    and index.indisunique
    and index.indnkeyatts = 1
    and exists (
      select
      from pg_catalog.pg_attribute as surrogate
      left join pg_catalog.pg_attrdef as made on made.adrelid = surrogate.attrelid and made.adnum = surrogate.attnum
      where surrogate.attrelid = relation.oid
        and surrogate.attnum = index.indkey[0]
        and (
          surrogate.atttypid = 'pg_catalog.uuid'::regtype
          or surrogate.attidentity <> ''
          or (
            surrogate.atttypid in ('int2'::regtype, 'int4'::regtype, 'int8'::regtype)
            and pg_get_expr(made.adbin, made.adrelid) like 'nextval(%'
          )
        )
    )
  )
order by 1

-- name: foreign_key_without_tenant
-- role: tenantry_owner
-- Foreign keys are checked past the policies: without the tenant on both sides a row may hang on another tenant's, be
-- deleted with it, and learn that it is there.
select
  format('%I.%I: foreign key %I', namespace.nspname, relation.relname, key.conname) as object,
  null::text as role,
  format('refers to %s without %s: it is checked past the policies, so a row may hang on another tenant''s',
    format('%I.%I', other_namespace.nspname, other.relname), :tenant_column::text) as reason,
  format('make it a foreign key of (%I, …) to (%I, …)', :tenant_column::text, :tenant_column::text) as fix
from pg_catalog.pg_constraint as key
join pg_catalog.pg_class as relation on relation.oid = key.conrelid
join pg_catalog.pg_namespace as namespace on namespace.oid = relation.relnamespace
join pg_catalog.pg_class as other on other.oid = key.confrelid
join pg_catalog.pg_namespace as other_namespace on other_namespace.oid = other.relnamespace
join pg_catalog.pg_attribute as theirs
  on theirs.attrelid = other.oid and theirs.attname = :tenant_column::text and not theirs.attisdropped
left join pg_catalog.pg_attribute as ours
  on ours.attrelid = relation.oid and ours.attname = :tenant_column::text and not ours.attisdropped
where key.contype = 'f'
  and key.conparentid = 0
  and (relation.oid = any(:tables::oid[]) or other.oid = any(:tables::oid[]))
  and not exists (
    select
    from unnest(key.conkey, key.confkey) as pair (ours, theirs)
    where pair.ours = ours.attnum and pair.theirs = theirs.attnum
  )
order by 1

-- name: table_reachable
-- role: tenantry_owner
-- A table outside of the audited schemas, without row-level security, that an audited role may use all the same.
select
  format('%I.%I', namespace.nspname, relation.relname) as object,
  who.rolname::text as role,
  format('lies outside of the audited schemas, is within reach and %s',
    case when relation.relrowsecurity then 'shows every row by a policy that is true' else 'has no row-level security' end)
    as reason,
  format(
    'revoke all on %I.%I from {roles} (or from public), or enable row-level security and audit the schema with --schema %I',
    namespace.nspname, relation.relname, namespace.nspname
  ) as fix
from pg_catalog.pg_class as relation
join pg_catalog.pg_namespace as namespace on namespace.oid = relation.relnamespace
cross join pg_catalog.pg_roles as who
where relation.relkind in ('r', 'p', 'f')
  and relation.oid <> all(:tables::oid[])
  and namespace.nspname <> all(:schemas::text[])
  and namespace.nspname <> 'information_schema'
  and namespace.nspname !~ '^pg_'
  and (
    not relation.relrowsecurity
    or exists (
      select
      from pg_catalog.pg_policy as policy
      cross join unnest(policy.polroles) as named (oid)
      where policy.polrelid = relation.oid
        and policy.polpermissive
        and pg_get_expr(policy.polqual, policy.polrelid) = 'true'
        -- Tenantry's own are audited by themselves.
        and namespace.nspname <> 'tenantry'
        and exists (
          select
          from pg_catalog.pg_attribute as tenant
          where tenant.attrelid = relation.oid and tenant.attname = :tenant_column::text and not tenant.attisdropped
        )
        and case when named.oid = 0 then true else pg_has_role(who.oid, named.oid, 'USAGE') end
    )
  )
  and who.rolname = any(:roles::text[])
  and has_schema_privilege(who.oid, namespace.oid, 'USAGE')
  and (
    has_any_column_privilege(who.oid, relation.oid, 'SELECT, INSERT, UPDATE')
    or has_table_privilege(who.oid, relation.oid, 'DELETE')
  )
  and not exists (
    select
    from pg_catalog.pg_depend as dependency
    where dependency.classid = 'pg_class'::regclass and dependency.objid = relation.oid and dependency.deptype = 'e'
  )
order by 1, 2

-- name: foreign_table
-- role: tenantry_owner
-- A foreign table cannot have policies.
select
  format('%I.%I', namespace.nspname, relation.relname) as object,
  null::text as role,
  'is a foreign table: it can have no policy' as reason,
  format('move %I.%I to a schema that no tenant''s role may use', namespace.nspname, relation.relname) as fix
from pg_catalog.pg_class as relation
join pg_catalog.pg_namespace as namespace on namespace.oid = relation.relnamespace
where namespace.nspname = any(:schemas::text[])
  and relation.relkind = 'f'
order by 1

-- name: function_security_definer
-- role: tenantry_owner
-- Runs as its owner: of the audited schemas every one, elsewhere what an audited role may call. An extension's are its own.
select
  format('%I.%I(%s)', namespace.nspname, function.proname, pg_get_function_identity_arguments(function.oid)) as object,
  null::text as role,
  format('runs as its definer: whoever calls it reads and writes with the rights of %I%s', owner.rolname,
    case when function.proconfig::text like '%search_path=%' then '' else ', and finds names by the caller''s search_path' end)
    as reason,
  format('alter routine %I.%I(%s) security invoker', namespace.nspname, function.proname,
    pg_get_function_identity_arguments(function.oid)) as fix
from pg_catalog.pg_proc as function
join pg_catalog.pg_namespace as namespace on namespace.oid = function.pronamespace
join pg_catalog.pg_roles as owner on owner.oid = function.proowner
where function.prosecdef
  and namespace.nspname not in ('pg_catalog', 'information_schema')
  and (
    namespace.nspname = any(:schemas::text[])
    or exists (
      select
      from pg_catalog.pg_roles as who
      where who.rolname = any(:roles::text[])
        and has_schema_privilege(who.oid, namespace.oid, 'USAGE')
        and has_function_privilege(who.oid, function.oid, 'EXECUTE')
    )
  )
  and not exists (
    select
    from pg_catalog.pg_depend as dependency
    where dependency.classid = 'pg_proc'::regclass and dependency.objid = function.oid and dependency.deptype = 'e'
  )
order by 1

-- name: function_leakproof
-- role: tenantry_owner
-- A function that is said to be leakproof is asked about rows before the policies are: of the audited schemas every one,
-- elsewhere what an audited role may call. The server's and an extension's are their own.
select
  format('%I.%I(%s)', namespace.nspname, function.proname, pg_get_function_identity_arguments(function.oid)) as object,
  null::text as role,
  'is marked LEAKPROOF: it is given other tenants'' values before a policy keeps their rows back' as reason,
  format('alter routine %I.%I(%s) not leakproof', namespace.nspname, function.proname,
    pg_get_function_identity_arguments(function.oid)) as fix
from pg_catalog.pg_proc as function
join pg_catalog.pg_namespace as namespace on namespace.oid = function.pronamespace
where function.proleakproof
  and namespace.nspname not in ('pg_catalog', 'information_schema')
  and (
    namespace.nspname = any(:schemas::text[])
    or exists (
      select
      from pg_catalog.pg_roles as who
      where who.rolname = any(:roles::text[])
        and has_schema_privilege(who.oid, namespace.oid, 'USAGE')
        and has_function_privilege(who.oid, function.oid, 'EXECUTE')
    )
  )
  and not exists (
    select
    from pg_catalog.pg_depend as dependency
    where dependency.classid = 'pg_proc'::regclass and dependency.objid = function.oid and dependency.deptype = 'e'
  )
order by 1

-- name: view_without_security_invoker
-- role: tenantry_owner
-- A view reads with its owner's rights: those of the audited schemas, and others that read an audited table, by way of
-- other views too.
with recursive reading (oid) as (
  select rule.ev_class
  from pg_catalog.pg_rewrite as rule
  join pg_catalog.pg_depend as dependency
    on dependency.classid = 'pg_rewrite'::regclass and dependency.objid = rule.oid
  where dependency.refclassid = 'pg_class'::regclass
    and dependency.refobjid = any(:tables::oid[])
  union
  select rule.ev_class
  from reading
  join pg_catalog.pg_depend as dependency
    on dependency.refclassid = 'pg_class'::regclass
    and dependency.refobjid = reading.oid
    and dependency.classid = 'pg_rewrite'::regclass
  join pg_catalog.pg_rewrite as rule on rule.oid = dependency.objid
)
select
  format('%I.%I', namespace.nspname, relation.relname) as object,
  null::text as role,
  format('reads with the rights of %I and not with those of who asks', owner.rolname) as reason,
  format('alter view %I.%I set (security_invoker = true)', namespace.nspname, relation.relname) as fix
from pg_catalog.pg_class as relation
join pg_catalog.pg_namespace as namespace on namespace.oid = relation.relnamespace
join pg_catalog.pg_roles as owner on owner.oid = relation.relowner
where relation.relkind = 'v'
  and namespace.nspname not in ('pg_catalog', 'information_schema')
  and not exists (
    select
    from pg_options_to_table(relation.reloptions) as option
    where option.option_name = 'security_invoker' and option.option_value::boolean
  )
  and (namespace.nspname = any(:schemas::text[]) or relation.oid in (select reading.oid from reading))
  and not exists (
    select
    from pg_catalog.pg_depend as dependency
    where dependency.classid = 'pg_class'::regclass and dependency.objid = relation.oid and dependency.deptype = 'e'
  )
order by 1

-- name: materialized_view
-- role: tenantry_owner
-- A copy of what its refresher saw, on which no policy can be: those of the audited schemas, and others of audited tables,
-- by way of views too.
with recursive reading (oid) as (
  select rule.ev_class
  from pg_catalog.pg_rewrite as rule
  join pg_catalog.pg_depend as dependency
    on dependency.classid = 'pg_rewrite'::regclass and dependency.objid = rule.oid
  where dependency.refclassid = 'pg_class'::regclass
    and dependency.refobjid = any(:tables::oid[])
  union
  select rule.ev_class
  from reading
  join pg_catalog.pg_depend as dependency
    on dependency.refclassid = 'pg_class'::regclass
    and dependency.refobjid = reading.oid
    and dependency.classid = 'pg_rewrite'::regclass
  join pg_catalog.pg_rewrite as rule on rule.oid = dependency.objid
)
select
  format('%I.%I', namespace.nspname, relation.relname) as object,
  null::text as role,
  'is a materialized view: a copy of what its owner saw, which can have no policy' as reason,
  format('drop materialized view %I.%I, or keep it in a schema that no tenant''s role may use, made of nothing audited',
    namespace.nspname, relation.relname) as fix
from pg_catalog.pg_class as relation
join pg_catalog.pg_namespace as namespace on namespace.oid = relation.relnamespace
where relation.relkind = 'm'
  and (namespace.nspname = any(:schemas::text[]) or relation.oid in (select reading.oid from reading))
order by 1

-- name: grant_past_policies
-- role: tenantry_owner
-- Policies say nothing about TRUNCATE, REFERENCES and TRIGGER; an owner has them anyway and is reported as an owner.
select
  format('%I.%I', namespace.nspname, relation.relname) as object,
  who.rolname::text as role,
  format('%s is granted, which no policy limits', string_agg(privilege.name, ', ' order by privilege.name)) as reason,
  format('revoke %s on %I.%I from {roles} (or from public)', string_agg(lower(privilege.name), ', ' order by privilege.name),
    namespace.nspname, relation.relname) as fix
from pg_catalog.pg_class as relation
join pg_catalog.pg_namespace as namespace on namespace.oid = relation.relnamespace
cross join pg_catalog.pg_roles as who
cross join (values ('TRUNCATE'), ('REFERENCES'), ('TRIGGER')) as privilege (name)
where relation.oid = any(:tables::oid[])
  and who.rolname = any(:roles::text[])
  and not pg_has_role(who.oid, relation.relowner, 'USAGE')
  and case
    when privilege.name = 'REFERENCES' then has_any_column_privilege(who.oid, relation.oid, 'REFERENCES')
    else has_table_privilege(who.oid, relation.oid, privilege.name)
  end
group by namespace.nspname, relation.relname, who.rolname
order by 1, 2

-- name: default_privileges
-- role: tenantry_owner
-- Tables yet to be made would be granted at once, before anybody has put a policy on them.
select
  format('default privileges of %I%s', owner.rolname,
    case when namespace.oid is null then '' else format(' in schema %I', namespace.nspname) end) as object,
  coalesce(grantee.rolname::text, 'public') as role,
  format('every new table is granted (%s) before it has a policy',
    string_agg(acl.privilege_type, ', ' order by acl.privilege_type)) as reason,
  format('alter default privileges for role %I%s revoke all on tables from %s', owner.rolname,
    case when namespace.oid is null then '' else format(' in schema %I', namespace.nspname) end,
    coalesce(quote_ident(grantee.rolname), 'public')) as fix
from pg_catalog.pg_default_acl as defaults
cross join lateral aclexplode(defaults.defaclacl) as acl
join pg_catalog.pg_roles as owner on owner.oid = defaults.defaclrole
left join pg_catalog.pg_roles as grantee on grantee.oid = acl.grantee
left join pg_catalog.pg_namespace as namespace on namespace.oid = defaults.defaclnamespace
where defaults.defaclobjtype = 'r'
  and (namespace.oid is null or namespace.nspname = any(:schemas::text[]))
  and acl.grantee <> defaults.defaclrole
  and (acl.grantee = 0 or grantee.rolname = any(:roles::text[]))
group by owner.rolname, namespace.oid, namespace.nspname, grantee.rolname
order by 1, 2

-- name: publication
-- role: tenantry_owner
-- Logical decoding knows no policies: a subscriber gets every tenant's rows.
select
  published.pubname::text as object,
  null::text as role,
  format('publishes %s (%s in all) past the policies: a subscriber gets every tenant''s rows',
    min(format('%I.%I', published.schemaname, published.tablename)), count(*)) as reason,
  format('drop publication %I, or leave these tables out of it', published.pubname) as fix
from pg_catalog.pg_publication_tables as published
join pg_catalog.pg_namespace as namespace on namespace.nspname = published.schemaname
join pg_catalog.pg_class as relation on relation.relnamespace = namespace.oid and relation.relname = published.tablename
where relation.oid = any(:tables::oid[])
group by published.pubname
order by 1

-- name: rule_as_owner
-- role: tenantry_owner
-- What a rule adds to a statement runs with the rights of the owner of the table or view, security_invoker or not: those
-- of the audited schemas, and others that work on an audited table.
select
  format('%I.%I: rule %I', namespace.nspname, relation.relname, rule.rulename) as object,
  null::text as role,
  format('runs its statements with the rights of %I and not with those of who asks', owner.rolname) as reason,
  format('drop rule %I on %I.%I', rule.rulename, namespace.nspname, relation.relname) as fix
from pg_catalog.pg_rewrite as rule
join pg_catalog.pg_class as relation on relation.oid = rule.ev_class
join pg_catalog.pg_namespace as namespace on namespace.oid = relation.relnamespace
join pg_catalog.pg_roles as owner on owner.oid = relation.relowner
where rule.ev_type <> '1'
  and namespace.nspname not in ('pg_catalog', 'information_schema')
  and (
    relation.oid = any(:tables::oid[])
    or namespace.nspname = any(:schemas::text[])
    or exists (
      select
      from pg_catalog.pg_depend as dependency
      where dependency.classid = 'pg_rewrite'::regclass
        and dependency.objid = rule.oid
        and dependency.refclassid = 'pg_class'::regclass
        and dependency.refobjid = any(:tables::oid[])
    )
  )
order by 1

-- name: schema_create
-- role: tenantry_owner
-- Who may create in the schema makes tables without policies, and functions that others then call by mistake.
select
  namespace.nspname::text as object,
  who.rolname::text as role,
  'CREATE is granted on the schema: tables made by it have its rights and no policy' as reason,
  format('revoke create on schema %I from {roles} (or from public)', namespace.nspname) as fix
from pg_catalog.pg_namespace as namespace
cross join pg_catalog.pg_roles as who
where namespace.nspname = any(:schemas::text[])
  and who.rolname = any(:roles::text[])
  and not pg_has_role(who.oid, namespace.nspowner, 'USAGE')
  and has_schema_privilege(who.oid, namespace.oid, 'CREATE')
order by 1, 2

-- name: tenant_preset
-- role: tenantry_owner
-- A tenant that the role or the database sets by itself is bound where nobody bound one: in the engine's setting, or one
-- that a policy, or what it calls, has in its text.
with told (text) as (
  select concat(pg_get_expr(policy.polqual, policy.polrelid), ' ', pg_get_expr(policy.polwithcheck, policy.polrelid))
  from pg_catalog.pg_policy as policy
  where policy.polrelid = any(:tables::oid[])
  union all
  select pg_get_functiondef(called.oid)
  from pg_catalog.pg_policy as policy
  join pg_catalog.pg_depend as dependency
    on dependency.classid = 'pg_policy'::regclass
    and dependency.objid = policy.oid
    and dependency.refclassid = 'pg_proc'::regclass
  join pg_catalog.pg_proc as called on called.oid = dependency.refobjid and called.prokind in ('f', 'w')
  where policy.polrelid = any(:tables::oid[])
)
select
  coalesce(who.rolname::text, current_database()::text) as object,
  null::text as role,
  format('sets %s by itself: its connections are bound to that tenant before they bind one', item.name) as reason,
  case
    when who.oid is null then format('alter database %I reset %s', current_database(), item.name)
    when setting.setdatabase = 0 then format('alter role %I reset %s', who.rolname, item.name)
    else format('alter role %I in database %I reset %s', who.rolname, current_database(), item.name)
  end as fix
from pg_catalog.pg_db_role_setting as setting
cross join lateral (
  select split_part(entry.text, '=', 1) as name
  from unnest(setting.setconfig) as entry (text)
  where entry.text ~ '^[^=]*\.[^=]*=.'
) as item
left join pg_catalog.pg_roles as who on who.oid = setting.setrole
where setting.setdatabase in (0, (select here.oid from pg_catalog.pg_database as here where here.datname = current_database()))
  and (setting.setrole = 0 or who.rolname = any(:roles::text[]))
  and (
    lower(item.name) = 'tenantry.tenant_id'
    or exists (select from told where strpos(lower(told.text), lower(quote_literal(item.name))) > 0)
  )
order by 1

-- name: statistics_exposed
-- role: tenantry_owner
-- CVE-2024-4317 is closed in a cluster that was made by a fixed version; one that was only updated keeps its old views.
select
  format('%I.%I', namespace.nspname, relation.relname) as object,
  null::text as role,
  'shows statistics of other owners'' tables, most common values included (CVE-2024-4317): updating the server left the view'
    ' as it was' as reason,
  'run fix-CVE-2024-4317.sql from the server''s share directory, as the release notes of 16.3, 15.7 and 14.12 say' as fix
from pg_catalog.pg_class as relation
join pg_catalog.pg_namespace as namespace on namespace.oid = relation.relnamespace
where namespace.nspname = 'pg_catalog'
  and relation.relname in ('pg_stats_ext', 'pg_stats_ext_exprs')
  and pg_get_viewdef(relation.oid) not like '%pg_has_role(c.relowner%'
order by 1
