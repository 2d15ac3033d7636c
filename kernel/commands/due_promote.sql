-- name: promote_runs
-- Runs whose time has come are ready, whatever their version and the tenant's standing: the waiting index stays short.
with due as (
  select waiting.run_id
  from tenantry.workflow_runs as waiting
  where waiting.tenant_id = :tenant_id::uuid
    and waiting.status = 'PENDING'
    and not waiting.ready
    and waiting.available_at <= tenantry.now()
  order by waiting.available_at
  limit 500
  for no key update of waiting skip locked
)
update tenantry.workflow_runs as run
set ready = true
from due
where run.tenant_id = :tenant_id::uuid and run.run_id = due.run_id
returning run.workflow_id as lane_workflow_id, run.version as lane_version, run.priority as lane_priority, run.rank

-- name: promote_jobs
-- Jobs whose retry or wake-up is due are ready.
with due as (
  select waiting.run_id, waiting.stage_id
  from tenantry.job_queue as waiting
  where waiting.tenant_id = :tenant_id::uuid
    and waiting.status = 'PENDING'
    and not waiting.ready
    and waiting.available_at <= tenantry.now()
  order by waiting.available_at
  limit 500
  for no key update of waiting skip locked
)
update tenantry.job_queue as job
set ready = true
from due
where job.tenant_id = :tenant_id::uuid and job.run_id = due.run_id and job.stage_id = due.stage_id
returning job.workflow_id as lane_workflow_id, job.version as lane_version, job.priority as lane_priority, job.rank
