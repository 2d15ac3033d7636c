-- name: held
-- The leases of a worker that began no later than an instant: what it had in flight then may have committed without it knowing.
select job.run_id, job.stage_id, job.attempt, job.started_at
from tenantry.job_queue as job
where job.tenant_id = :tenant_id::uuid
  and job.status = 'RUNNING'
  and job.worker_id = :worker_id::text
  and (:before::timestamptz is null or job.started_at <= :before::timestamptz)
order by job.run_id, job.stage_id
