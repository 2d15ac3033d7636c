-- name: advance
-- Move the engine's clock within this transaction.
select set_config('tenantry.clock_offset', :offset::text, true)

-- name: clock
-- The engine's clock, before it is looked for work.
select tenantry.now() as now

-- name: moments
-- When each of these runs may go on by itself, and the clock now: a run that is not due, a retry, a lease that lapses, a step's
-- next try, poll, end or deadline (those of steps later than :since). The keepalive of a signal is left out where the wait's
-- deadline is known: in a test no wake-up is lost.
select moment.at, tenantry.now() as now
from (
  select run.available_at as at
  from tenantry.workflow_runs as run
  where run.tenant_id = :tenant_id::uuid and run.run_id = any(:run_ids::uuid[]) and run.status = 'PENDING'
  union all
  select unnest(
    case
      when job.status = 'PENDING' and job.replay then array[coalesce(step.at, job.available_at)]
      when job.status = 'PENDING' then array[job.available_at]
      -- A replay is taken back by whichever of these comes first; to look too early does no harm.
      else array[
        job.locked_at + :stale_after::interval,
        case when job.replay then job.locked_at + :stale_after::interval / 2 end,
        case when job.replay then stage.next_poll_at end
      ]
    end
  )
  from tenantry.job_queue as job
  join tenantry.workflow_stages as stage
    on stage.tenant_id = :tenant_id::uuid and stage.run_id = job.run_id and stage.stage_id = job.stage_id
  left join lateral (
    select min(mark.at) as at
    from tenantry.workflow_steps as waited
    cross join lateral unnest(array[waited.due_at, waited.deadline_at, waited.lease_expires_at]) as mark (at)
    where waited.tenant_id = :tenant_id::uuid and waited.run_id = job.run_id and waited.stage_id = job.stage_id
      and waited.status in ('pending', 'running') and mark.at > coalesce(:since::timestamptz, tenantry.now())
  ) as step on true
  where job.tenant_id = :tenant_id::uuid and job.run_id = any(:run_ids::uuid[]) and job.status in ('PENDING', 'RUNNING')
) as moment
where moment.at is not null

-- name: standing
-- How a run is, and whether all that is left of it waits for something outside: every job is parked, none leased or to be
-- tried again.
select
  run.status,
  exists (
    select from tenantry.job_queue as job
    where job.tenant_id = :tenant_id::uuid and job.run_id = :run_id::uuid and job.status = 'PENDING' and job.replay
  ) as is_waiting,
  exists (
    select from tenantry.job_queue as job
    where job.tenant_id = :tenant_id::uuid and job.run_id = :run_id::uuid
      and (job.status = 'RUNNING' or job.status = 'PENDING' and not job.replay)
  ) as is_active
from tenantry.workflow_runs as run
where run.tenant_id = :tenant_id::uuid and run.run_id = :run_id::uuid
