-- name: of_run
-- The jobs of one run by their key: those that wait, those under a lease, those that are dead.
select
  job.stage_id, job.workflow_id, job.version, job.status, job.replay, job.attempt, job.available_at,
  job.available_at > tenantry.now() as is_early, job.worker_id, job.locked_at, job.started_at
from tenantry.job_queue as job
where job.tenant_id = :tenant_id::uuid and job.run_id = :run_id::uuid
order by job.stage_id

-- name: workers
-- Who holds leases of the tenant, read from the index that knows only what runs now. A bounded number of leases is looked at.
select
  held.worker_id, count(*)::int as jobs, array_agg(distinct held.workflow_id order by held.workflow_id) as workflows,
  min(held.started_at) as oldest_started_at, max(held.locked_at) as heard_at
from (
  select job.worker_id, job.workflow_id, job.started_at, job.locked_at
  from tenantry.job_queue as job
  where job.tenant_id = :tenant_id::uuid and job.status = 'RUNNING'
  limit :look_at::int
) as held
where held.worker_id is not null and held.locked_at is not null and held.started_at is not null
group by held.worker_id
order by jobs desc, held.worker_id
limit :limit::int
