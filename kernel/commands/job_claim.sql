-- name: claim
-- Lock the next ready jobs of the served pairs and their runs, leaving out what others hold; `run_had` is false when the run
-- is held elsewhere or gone. The function's text is in the migrations (0006).
select
  claimed.run_id, claimed.stage_id, claimed.lane_workflow_id, claimed.lane_version, claimed.lane_priority, claimed.job_status,
  claimed.replay, claimed.job_attempt, claimed.max_attempts, claimed.available_at, claimed.rank, claimed.started_at,
  claimed.run_had, claimed.workflow_id, claimed.version, claimed.status, claimed.priority, claimed.event_sequence,
  claimed.redrive_count, claimed.traceparent, claimed.tracestate, claimed.updated_at, claimed.now, claimed.input,
  claimed.config
from tenantry.claim_jobs_v1(:tenant_id::uuid, :served::text::json, :limit::int) as claimed

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
