-- name: bind
-- As tenancy binds: role and tenant for this transaction.
select set_config('role', 'tenantry_tenant', true), set_config('tenantry.tenant_id', :tenant_id::text, true)

-- name: insert
-- One row, as wide as a run.
insert into tenantry.workflow_runs (tenant_id, run_id, workflow_id, version, rank, ready, available_at, input)
values (
  :tenant_id::uuid, :run_id::uuid, :workflow::text, 'plain', tenantry.now(), false, tenantry.now(), :input::text::json
)
