-- name: standing
-- Whether this tenant's runs may be started, and whether this one, locked by an earlier statement, is due.
select
  run.available_at <= tenantry.now() as is_due, coalesce(tenant.status, 'active') as tenant_status,
  run.run_id, run.workflow_id, run.version, run.status, run.priority, run.event_sequence, run.redrive_count,
  run.traceparent, run.tracestate, run.updated_at, tenantry.now() as now,
  run.available_at, run.input::text as input, run.config::text as config
from tenantry.workflow_runs as run
left join tenantry.tenants as tenant on tenant.tenant_id = :tenant_id::uuid
where run.tenant_id = :tenant_id::uuid and run.run_id = :run_id::uuid

-- name: queued_jobs
-- The queued jobs of a run, those that are due first.
select job.stage_id, job.ready or job.available_at <= tenantry.now() as is_due
from tenantry.job_queue as job
join tenantry.workflow_stages as stage
  on stage.tenant_id = :tenant_id::uuid and stage.run_id = job.run_id and stage.stage_id = job.stage_id
where job.tenant_id = :tenant_id::uuid
  and job.run_id = :run_id::uuid
  and job.status = 'PENDING'
order by is_due desc, stage.number

-- name: waits
-- How many stages of a run wait outside the queue, and how many are not over for another reason, replays that a worker has
-- included.
select
  count(*) filter (where stage.status = 'SUSPENDED')::int as suspended,
  count(*) filter (where stage.status in ('PENDING', 'RUNNING') or job.status = 'RUNNING')::int as active
from tenantry.workflow_stages as stage
left join tenantry.job_queue as job
  on job.tenant_id = :tenant_id::uuid and job.run_id = stage.run_id and job.stage_id = stage.stage_id
where stage.tenant_id = :tenant_id::uuid and stage.run_id = :run_id::uuid
