-- name: claim
-- Lock the next ready jobs of the served pairs and their runs in one statement, leaving out what others hold. A job whose
-- run is held elsewhere comes back without one (run_had false) and stays as it is; so does a job whose run is gone, which
-- the caller tells apart by a later look: an inner join would hide it for ever.
select
  job.run_id, job.stage_id, job.workflow_id as job_workflow_id, job.version as job_version, job.status as job_status,
  job.replay, job.attempt as job_attempt, job.max_attempts, job.available_at, job.rank, job.started_at,
  run.run_id is not null as run_had,
  run.workflow_id, run.version, run.status, run.priority, run.event_sequence, run.redrive_count, run.traceparent,
  run.tracestate, run.updated_at, tenantry.now() as now,
  run.input::text as input, run.config::text as config
from (
  select candidate.*
  from json_to_recordset(:served::text::json) as served (workflow_id text, version text)
  cross join lateral (
    select queued.*
    from tenantry.job_queue as queued
    where queued.tenant_id = :tenant_id::uuid
      and queued.workflow_id = served.workflow_id
      and queued.version = served.version
      and queued.ready
    order by queued.rank
    limit :limit::int
    for no key update of queued skip locked
  ) as candidate
  order by candidate.rank
  limit :limit::int
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
  job.run_id, job.stage_id, job.workflow_id as job_workflow_id, job.version as job_version, job.status as job_status,
  job.replay, job.attempt as job_attempt, job.max_attempts, job.available_at, job.rank, job.started_at,
  true as run_had,
  run.workflow_id, run.version, run.status, run.priority, run.event_sequence, run.redrive_count, run.traceparent,
  run.tracestate, run.updated_at, tenantry.now() as now,
  run.input::text as input, run.config::text as config
from tenantry.job_queue as job
join tenantry.workflow_runs as run on run.tenant_id = :tenant_id::uuid and run.run_id = job.run_id
where job.tenant_id = :tenant_id::uuid and job.run_id = :run_id::uuid and job.stage_id = :stage_id::text
