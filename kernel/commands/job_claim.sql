-- name: claim
-- Lock the next ready jobs of the served pairs and their runs in one statement, leaving out what others hold. A job whose
-- run is held elsewhere comes back without one (run_had false) and stays as it is; so does a job whose run is gone, which
-- the caller tells apart by a later look: an inner join would hide it for ever.
-- Each lane (workflow, version, priority) is probed from its floor on, because the dead entries of old claims lie below; the
-- heads, read without locks, only say how many rows of which lane come first, so that no lane is locked for nothing. The
-- floors are materialized: under row-level security an index takes no bound that is computed by functions that may leak.
with lanes as materialized (
  select
    served.workflow_id, served.version, level.priority,
    coalesce((served.floors ->> level.priority::text)::timestamptz, '-infinity') as floor
  from json_to_recordset(:served::text::json) as served (workflow_id text, version text, floors json)
  cross join generate_series(0, 9) as level (priority)
),
heads as (
  select lanes.workflow_id, lanes.version, lanes.priority, lanes.floor
  from lanes
  cross join lateral (
    select ahead.rank
    from tenantry.job_queue as ahead
    where ahead.tenant_id = :tenant_id::uuid
      and ahead.workflow_id = lanes.workflow_id
      and ahead.version = lanes.version
      and ahead.priority = lanes.priority
      and ahead.rank >= lanes.floor
      and ahead.ready
    order by ahead.rank
    limit :limit::int
  ) as head
  order by head.rank
  limit :limit::int
),
shares as (
  select heads.workflow_id, heads.version, heads.priority, heads.floor, count(*) as jobs
  from heads
  group by heads.workflow_id, heads.version, heads.priority, heads.floor
)
select
  job.run_id, job.stage_id, job.workflow_id as lane_workflow_id, job.version as lane_version,
  job.priority as lane_priority, job.status as job_status,
  job.replay, job.attempt as job_attempt, job.max_attempts, job.available_at, job.rank, job.started_at,
  run.run_id is not null as run_had,
  run.workflow_id, run.version, run.status, run.priority, run.event_sequence, run.redrive_count, run.traceparent,
  run.tracestate, run.updated_at, tenantry.now() as now,
  run.input::text as input, run.config::text as config
from (
  select candidate.*
  from shares
  cross join lateral (
    select queued.*
    from tenantry.job_queue as queued
    where queued.tenant_id = :tenant_id::uuid
      and queued.workflow_id = shares.workflow_id
      and queued.version = shares.version
      and queued.priority = shares.priority
      and queued.rank >= shares.floor
      and queued.ready
    order by queued.rank
    limit shares.jobs
    for no key update of queued skip locked
  ) as candidate
  order by candidate.rank
) as job
left join lateral (
  select held.*
  from tenantry.workflow_runs as held
  where held.tenant_id = :tenant_id::uuid and held.run_id = job.run_id
  for no key update of held skip locked
) as run on true

-- name: queued
-- One job with its run, both locked by earlier statements: for a caller that names the stage to execute.
select
  job.run_id, job.stage_id, job.status as job_status,
  job.replay, job.attempt as job_attempt, job.max_attempts, job.available_at, job.started_at,
  true as run_had,
  run.workflow_id, run.version, run.status, run.priority, run.event_sequence, run.redrive_count, run.traceparent,
  run.tracestate, run.updated_at, tenantry.now() as now,
  run.input::text as input, run.config::text as config
from tenantry.job_queue as job
join tenantry.workflow_runs as run on run.tenant_id = :tenant_id::uuid and run.run_id = job.run_id
where job.tenant_id = :tenant_id::uuid and job.run_id = :run_id::uuid and job.stage_id = :stage_id::text
