-- name: beat
-- Refresh the leases that are still these, and tell of each job whether it is and how its run stands. The one exception to
-- "lock first": it takes no run lock, changes nothing but locked_at and, for a replay, when it is due again, and locks the
-- rows it updates, fence checked, leaving out what a settle holds. The answer is read from the statement's snapshot, so a
-- skipped row is not mistaken for a lost one.
with asked as (
  select item.run_id, item.stage_id, item.attempt, item.started_at
  from json_to_recordset(:items::text::json) as item (
    run_id uuid, stage_id text, attempt int, started_at timestamptz
  )
),
mine as (
  select job.run_id, job.stage_id, job.replay
  from tenantry.job_queue as job
  join asked on asked.run_id = job.run_id and asked.stage_id = job.stage_id
  where job.tenant_id = :tenant_id::uuid
    and job.status = 'RUNNING'
    and job.attempt = asked.attempt
    and job.started_at = asked.started_at
  order by job.run_id, job.stage_id
  for no key update of job skip locked
),
beaten as (
  update tenantry.job_queue as job
  set
    locked_at = tenantry.now(),
    available_at = case when mine.replay then tenantry.now() + :replay_margin::interval else job.available_at end
  from mine
  where job.tenant_id = :tenant_id::uuid and job.run_id = mine.run_id and job.stage_id = mine.stage_id
),
replayed as (
  select stage.run_id, stage.stage_id
  from tenantry.workflow_stages as stage
  join mine on mine.run_id = stage.run_id and mine.stage_id = stage.stage_id and mine.replay
  where stage.tenant_id = :tenant_id::uuid and stage.status = 'SUSPENDED'
  order by stage.run_id, stage.stage_id
  for no key update of stage skip locked
),
bumped as (
  update tenantry.workflow_stages as stage
  set next_poll_at = tenantry.now() + :replay_margin::interval
  from replayed
  where stage.tenant_id = :tenant_id::uuid and stage.run_id = replayed.run_id and stage.stage_id = replayed.stage_id
)
select
  asked.run_id,
  asked.stage_id,
  asked.attempt,
  asked.started_at,
  run.status as run_status,
  coalesce(
    job.status = 'RUNNING' and job.attempt = asked.attempt and job.started_at = asked.started_at, false
  ) as lease_held
from asked
left join tenantry.workflow_runs as run on run.tenant_id = :tenant_id::uuid and run.run_id = asked.run_id
left join tenantry.job_queue as job
  on job.tenant_id = :tenant_id::uuid and job.run_id = asked.run_id and job.stage_id = asked.stage_id
