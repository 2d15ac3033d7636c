-- What `tenancy/isolation/catalog.py` asks of the catalogs about tables that are not ours.

-- name: relations
-- role: tenantry_owner
-- Tables, views and what else can be read of the schemas, partitions elsewhere included; what an extension brought is the
-- extension's.
with recursive found (oid) as (
  select relation.oid
  from pg_catalog.pg_class as relation
  join pg_catalog.pg_namespace as namespace on namespace.oid = relation.relnamespace
  where namespace.nspname = any(:schemas::text[])
    and relation.relkind in ('r', 'p', 'v', 'm', 'f')
    and not exists (
      select
      from pg_catalog.pg_depend as dependency
      where dependency.classid = 'pg_class'::regclass and dependency.objid = relation.oid and dependency.deptype = 'e'
    )
  union
  select inheritance.inhrelid
  from found
  join pg_catalog.pg_inherits as inheritance on inheritance.inhparent = found.oid
  join pg_catalog.pg_class as child on child.oid = inheritance.inhrelid and child.relkind in ('r', 'p', 'f')
)
select found.oid::bigint as oid
from found
order by 1

-- name: relation
-- role: tenantry_owner
-- One of them by its oid, wherever it is.
select
  namespace.nspname::text as schema,
  relation.relname::text as name,
  relation.relkind::text as kind
from pg_catalog.pg_class as relation
join pg_catalog.pg_namespace as namespace on namespace.oid = relation.relnamespace
where relation.oid = :oid::oid

-- name: columns
-- role: tenantry_owner
-- Its columns in their order; a domain's column with the type that the domain is made of.
select
  attribute.attname::text as name,
  plain.typname::text as type,
  plain.typcategory::text as category,
  case when plain.typname in ('varchar', 'bpchar') and attribute.atttypmod > 4 then attribute.atttypmod - 4 end as length,
  case
    when plain.typname = 'numeric' and attribute.atttypmod > 4
    then ((attribute.atttypmod - 4) >> 16 & 65535) - (attribute.atttypmod - 4 & 2047)
  end as digits,
  attribute.attnotnull as is_required,
  attribute.atthasdef or attribute.attidentity <> '' as has_default,
  attribute.attgenerated <> '' as is_generated,
  attribute.attidentity = 'a' as is_always_identity,
  array(
    select label.enumlabel::text
    from pg_catalog.pg_enum as label
    where label.enumtypid = plain.oid
    order by label.enumsortorder
  ) as labels
from pg_catalog.pg_attribute as attribute
join pg_catalog.pg_type as declared on declared.oid = attribute.atttypid
join pg_catalog.pg_type as plain on plain.oid = coalesce(nullif(declared.typbasetype, 0), declared.oid)
where attribute.attrelid = :oid::oid
  and attribute.attnum > 0
  and not attribute.attisdropped
order by attribute.attnum

-- name: rules
-- role: tenantry_owner
-- What its values must fulfil: CHECKs of the table and of its columns' domains by name, bounds of partitions without one.
select
  written.conname::text as name,
  array(
    select attribute.attname::text
    from pg_catalog.pg_attribute as attribute
    where attribute.attrelid = written.conrelid and attribute.attnum = any(written.conkey)
  ) as columns,
  pg_get_constraintdef(written.oid) as definition
from pg_catalog.pg_constraint as written
where written.conrelid = :oid::oid and written.contype = 'c'
union all
select
  written.conname::text,
  array[attribute.attname::text],
  pg_get_constraintdef(written.oid)
from pg_catalog.pg_attribute as attribute
join pg_catalog.pg_constraint as written on written.contypid = attribute.atttypid and written.contype = 'c'
where attribute.attrelid = :oid::oid
union all
select
  null::text,
  array(
    select attribute.attname::text
    from unnest(partitioned.partattrs::int2[]) as key (number)
    join pg_catalog.pg_attribute as attribute
      on attribute.attrelid = partitioned.partrelid and attribute.attnum = key.number
  ),
  pg_get_expr(bound.relpartbound, bound.oid)
from (
  select above.relid::oid as oid from pg_partition_ancestors(:oid::regclass) as above (relid)
  union
  select below.relid::oid from pg_partition_tree(:oid::regclass) as below
) as relative
join pg_catalog.pg_class as bound on bound.oid = relative.oid and bound.relispartition
join pg_catalog.pg_inherits as inheritance on inheritance.inhrelid = bound.oid
join pg_catalog.pg_partitioned_table as partitioned on partitioned.partrelid = inheritance.inhparent

-- name: foreign_keys
-- role: tenantry_owner
-- Its foreign keys, columns on both sides in their order.
select
  written.conname::text as name,
  array(
    select attribute.attname::text
    from unnest(written.conkey) with ordinality as key (number, place)
    join pg_catalog.pg_attribute as attribute
      on attribute.attrelid = written.conrelid and attribute.attnum = key.number
    order by key.place
  ) as columns,
  written.confrelid::bigint as parent,
  array(
    select attribute.attname::text
    from unnest(written.confkey) with ordinality as key (number, place)
    join pg_catalog.pg_attribute as attribute
      on attribute.attrelid = written.confrelid and attribute.attnum = key.number
    order by key.place
  ) as parent_columns
from pg_catalog.pg_constraint as written
where written.conrelid = :oid::oid and written.contype = 'f'
order by 1

-- name: keys
-- role: tenantry_owner
-- Its unique indexes and exclusion constraints, the primary key first.
select
  index_relation.relname::text as name,
  index.indisprimary as is_primary,
  array(
    select attribute.attname::text
    from unnest(index.indkey::int2[]) with ordinality as key (number, place)
    join pg_catalog.pg_attribute as attribute
      on attribute.attrelid = index.indrelid and attribute.attnum = key.number
    where key.place <= index.indnkeyatts
    order by key.place
  ) as columns,
  pg_get_expr(index.indpred, index.indrelid) as predicate,
  index.indisexclusion as is_exclusion
from pg_catalog.pg_index as index
join pg_catalog.pg_class as index_relation on index_relation.oid = index.indexrelid
where index.indrelid = :oid::oid
  and (index.indisunique or index.indisexclusion)
order by not index.indisprimary, 1

-- name: granted
-- role: tenantry_owner
-- What whoever asks may do with each column.
select
  attribute.attname::text as name,
  has_column_privilege(attribute.attrelid, attribute.attnum, 'SELECT') as can_select,
  has_column_privilege(attribute.attrelid, attribute.attnum, 'INSERT') as can_insert,
  has_column_privilege(attribute.attrelid, attribute.attnum, 'UPDATE') as can_update
from pg_catalog.pg_attribute as attribute
where attribute.attrelid = :oid::oid
  and attribute.attnum > 0
  and not attribute.attisdropped
order by attribute.attnum

-- name: writable
-- role: tenantry_owner
-- What whoever asks may do to a table as a whole.
select
  array(
    select privilege.name
    from (values ('INSERT'), ('UPDATE'), ('DELETE'), ('TRUNCATE')) as privilege (name)
    where case
      when privilege.name in ('INSERT', 'UPDATE') then has_any_column_privilege(:oid::oid, privilege.name)
      else has_table_privilege(:oid::oid, privilege.name)
    end
  )::text[] as privileges

-- name: standing
-- role: tenantry_owner
-- Who somebody is, and whether policies bind them at all.
select
  session_user::text as login,
  current_user::text as role,
  me.rolsuper as is_superuser,
  me.rolbypassrls as bypasses_rls,
  current_setting('row_security') as row_security
from pg_catalog.pg_roles as me
where me.rolname = current_user
