-- name: tenant
-- The bound tenant with its limits. A tenant without limits has no row of them.
select
  tenant.tenant_id, tenant.slug, tenant.name, tenant.status,
  claim.running_jobs, creation.pending_runs, creation.runs_per_minute, creation.payload_bytes
from tenantry.tenants as tenant
left join tenantry.tenant_limits as claim on claim.tenant_id = :tenant_id::uuid and claim.kind = 'claim'
left join tenantry.tenant_limits as creation on creation.tenant_id = :tenant_id::uuid and creation.kind = 'create'
where tenant.tenant_id = :tenant_id::uuid

-- name: usage
-- What the tenant has right now, counted no further than one beyond the limit that is shown.
select
  (
    select count(*)
    from (
      select from tenantry.workflow_runs as run
      where run.tenant_id = :tenant_id::uuid and run.status = 'PENDING'
      limit :count_to::int
    ) as pending
  ) as pending_runs,
  (
    select count(*)
    from (
      select from tenantry.job_queue as job
      where job.tenant_id = :tenant_id::uuid and job.status = 'RUNNING'
      limit :count_to::int
    ) as running
  ) as running_jobs,
  (
    select count(*)
    from (
      select from tenantry.workflow_runs as run
      where run.tenant_id = :tenant_id::uuid
      limit :count_to::int
    ) as stored
  ) as stored_runs
