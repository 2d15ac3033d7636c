-- Tenants as operators see them: their own rows and their limits, never a run or a payload.

-- name: create_tenant
-- role: tenantry_operator
-- Answers no row when the slug is taken, and never an error.
insert into tenantry.tenants (tenant_id, slug, name)
values (tenantry.uuid7(), :slug::text, :name::text)
on conflict (slug) do nothing
returning tenant_id

-- name: get_tenants
-- role: tenantry_operator
-- One tenant by id or by slug, or a page of all of them in the order they were created.
select
  tenant.tenant_id, tenant.slug, tenant.name, tenant.status, tenant.weight, tenant.retention, tenant.created_at,
  claiming.running_jobs, creating.pending_runs, creating.runs_per_minute, creating.payload_bytes
from tenantry.tenants as tenant
left join tenantry.tenant_limits as claiming on claiming.tenant_id = tenant.tenant_id and claiming.kind = 'claim'
left join tenantry.tenant_limits as creating on creating.tenant_id = tenant.tenant_id and creating.kind = 'create'
where
  (:tenant_id::uuid is null or tenant.tenant_id = :tenant_id::uuid)
  and (:slug::text is null or tenant.slug = :slug::text)
  and (:after::uuid is null or tenant.tenant_id > :after::uuid)
order by tenant.tenant_id
limit :limit::int

-- name: lock_tenant
-- role: tenantry_operator
-- Whoever changes a tenant holds its row first.
select tenant.slug, tenant.status
from tenantry.tenants as tenant
where tenant.tenant_id = :tenant_id::uuid
for no key update of tenant

-- name: set_status
-- role: tenantry_operator
update tenantry.tenants as tenant
set status = :status::text
where tenant.tenant_id = :tenant_id::uuid and tenant.status <> 'deleting'

-- name: set_scheduling
-- role: tenantry_operator
-- Only what the request names is changed.
update tenantry.tenants as tenant
set
  weight = case when :change_weight::boolean then :weight::int else tenant.weight end,
  retention = case when :change_retention::boolean then :retention::interval else tenant.retention end
where tenant.tenant_id = :tenant_id::uuid and tenant.status <> 'deleting'

-- name: set_claim_limits
-- role: tenantry_operator
-- A row exists only for a tenant that has the limit: its mere presence makes claims take turns.
insert into tenantry.tenant_limits as claiming (tenant_id, kind, running_jobs)
values (:tenant_id::uuid, 'claim', :running_jobs::int)
on conflict (tenant_id, kind) do update set running_jobs = excluded.running_jobs

-- name: set_create_limits
-- role: tenantry_operator
-- Only what the request names is changed.
insert into tenantry.tenant_limits as creating (tenant_id, kind, pending_runs, runs_per_minute, payload_bytes)
values (:tenant_id::uuid, 'create', :pending_runs::int, :runs_per_minute::int, :payload_bytes::int)
on conflict (tenant_id, kind) do update
set
  pending_runs = case when :change_pending_runs::boolean then excluded.pending_runs else creating.pending_runs end,
  runs_per_minute = case when :change_runs_per_minute::boolean then excluded.runs_per_minute else creating.runs_per_minute end,
  payload_bytes = case when :change_payload_bytes::boolean then excluded.payload_bytes else creating.payload_bytes end

-- name: drop_empty_limits
-- role: tenantry_operator
-- A tenant without limits takes no lock, so a row that limits nothing must go.
delete from tenantry.tenant_limits as limits
where
  limits.tenant_id = :tenant_id::uuid
  and limits.running_jobs is null and limits.pending_runs is null
  and limits.runs_per_minute is null and limits.payload_bytes is null

-- name: drop_limits
-- role: tenantry_operator
delete from tenantry.tenant_limits as limits
where limits.tenant_id = :tenant_id::uuid

-- name: drop_tenant
-- role: tenantry_operator
-- The last row of a deleted tenant.
delete from tenantry.tenants as tenant
where tenant.tenant_id = :tenant_id::uuid and tenant.status = 'deleting'

-- name: become_tenant
-- role: tenantry_operator
-- Carry on in this transaction as the tenant, so that the audit row commits or vanishes with the deed it tells of.
select
  set_config('role', 'tenantry_tenant', true) as role,
  set_config('tenantry.tenant_id', (:tenant_id::uuid)::text, true) as tenant_id

-- name: record_deed
insert into tenantry.audit_log (tenant_id, actor, action, details)
values (:tenant_id::uuid, :actor::text, :action::text, :details::json)
