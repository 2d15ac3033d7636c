-- What waits and what runs. Everything is bounded: a queue of millions is answered from its oldest ten thousand.
-- A parked job, whose stage sleeps or waits for a step, is in the queue only once it is due again; until then the stage says
-- what it waits for. Those that sleep lie among the others in the key of the jobs and are passed over, a bounded number of them.

-- name: by_workflow
-- Depth (runs and jobs that are PENDING), running jobs and the age of what has been due longest, by workflow.
with waiting as (
  (
    select run.workflow_id, run.available_at
    from tenantry.workflow_runs as run
    where run.tenant_id = :tenant_id::uuid and run.status = 'PENDING'
    order by run.run_id
    limit :count_to::int
  )
  union all
  (
    select oldest.workflow_id, oldest.available_at
    from (
      select job.workflow_id, job.available_at, job.replay
      from tenantry.job_queue as job
      where job.tenant_id = :tenant_id::uuid and job.status = 'PENDING'
      order by job.run_id
      limit :look_at::int
    ) as oldest
    where not oldest.replay
    limit :count_to::int
  )
  union all
  (
    select job.workflow_id, job.available_at
    from tenantry.job_queue as job
    where job.tenant_id = :tenant_id::uuid and job.status = 'PENDING' and job.replay and job.available_at <= tenantry.now()
    limit :count_to::int
  )
),
running as (
  select job.workflow_id
  from tenantry.job_queue as job
  where job.tenant_id = :tenant_id::uuid and job.status = 'RUNNING'
  limit :count_to::int
)
select
  counted.workflow_id,
  sum(counted.waiting)::int as depth,
  sum(counted.running)::int as running,
  extract(epoch from tenantry.now() - min(counted.due_at))::float8 as oldest_age_s
from (
  select
    waiting.workflow_id, count(*) as waiting, 0 as running,
    min(waiting.available_at) filter (where waiting.available_at <= tenantry.now()) as due_at
  from waiting
  group by waiting.workflow_id
  union all
  select running.workflow_id, 0, count(*), null
  from running
  group by running.workflow_id
) as counted
group by counted.workflow_id
order by counted.workflow_id

-- name: waiting
-- Who waits, first in line first, with what tells why. Taken from the oldest thousand of each kind.
select
  entry.run_id, entry.is_job, entry.workflow_id, entry.version, entry.available_at > tenantry.now() as is_early
from (
  (
    select run.run_id, false as is_job, run.workflow_id, run.version, run.available_at, run.rank
    from tenantry.workflow_runs as run
    where run.tenant_id = :tenant_id::uuid and run.status = 'PENDING'
    order by run.run_id
    limit 1000
  )
  union all
  (
    select oldest.run_id, true, oldest.workflow_id, oldest.version, oldest.available_at, oldest.rank
    from (
      select job.run_id, job.workflow_id, job.version, job.available_at, job.rank, job.replay
      from tenantry.job_queue as job
      where job.tenant_id = :tenant_id::uuid and job.status = 'PENDING'
      order by job.run_id
      limit :look_at::int
    ) as oldest
    where not oldest.replay
    limit 1000
  )
  union all
  (
    select job.run_id, true, job.workflow_id, job.version, job.available_at, job.rank
    from tenantry.job_queue as job
    where job.tenant_id = :tenant_id::uuid and job.status = 'PENDING' and job.replay and job.available_at <= tenantry.now()
    order by job.available_at
    limit 1000
  )
) as entry
order by entry.rank, entry.run_id
limit :limit::int
