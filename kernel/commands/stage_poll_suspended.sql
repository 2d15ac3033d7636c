-- name: claim
-- Lock the parked jobs of the served pairs that are due, and their runs, in one statement, leaving out what others hold.
-- Promoted or not, they are found in the index of parked jobs by when they are due.
select
  job.run_id, job.stage_id, job.workflow_id as job_workflow_id, job.version as job_version, job.status as job_status,
  job.replay, job.attempt as job_attempt, job.max_attempts, job.available_at, job.rank, job.started_at,
  run.run_id is not null as run_had,
  run.workflow_id, run.version, run.status, run.priority, run.event_sequence, run.redrive_count, run.traceparent,
  run.tracestate, run.updated_at, tenantry.now() as now,
  run.input::text as input, run.config::text as config
from (
  select parked.*
  from tenantry.job_queue as parked
  join json_to_recordset(:served::text::json) as served (workflow_id text, version text)
    on served.workflow_id = parked.workflow_id and served.version = parked.version
  where parked.tenant_id = :tenant_id::uuid
    and parked.status = 'PENDING'
    and parked.replay
    and parked.available_at <= tenantry.now()
  order by parked.available_at
  limit :limit::int
  for no key update of parked skip locked
) as job
left join lateral (
  select held.*
  from tenantry.workflow_runs as held
  where held.tenant_id = :tenant_id::uuid and held.run_id = job.run_id
  for no key update of held skip locked
) as run on true
