-- The run row is the arbiter between settle, transition, cancel, reap and purge: whoever changes anything about a run holds
-- its lock, taken by one of these statements and nothing else, and looks at everything else in a later statement.

-- name: lock_runs
-- Lock the runs that nobody else holds; the others are left out. For background transactions, which never wait for a row.
select
  run.run_id, run.workflow_id, run.version, run.status, run.priority, run.event_sequence, run.redrive_count,
  run.traceparent, run.tracestate, run.updated_at, tenantry.now() as now
from tenantry.workflow_runs as run
where run.tenant_id = :tenant_id::uuid and run.run_id = any(:run_ids::uuid[])
order by run.run_id
for no key update of run skip locked

-- name: lock_runs_waiting
-- Lock the runs, waiting for whoever holds one. For foreground commands of one run, and for what was not had five times.
select
  run.run_id, run.workflow_id, run.version, run.status, run.priority, run.event_sequence, run.redrive_count,
  run.traceparent, run.tracestate, run.updated_at, tenantry.now() as now
from tenantry.workflow_runs as run
where run.tenant_id = :tenant_id::uuid and run.run_id = any(:run_ids::uuid[])
order by run.run_id
for no key update of run

-- name: existing_runs
-- Which of these runs exist at all: tells a run that somebody holds from one that is gone.
select run.run_id
from tenantry.workflow_runs as run
where run.tenant_id = :tenant_id::uuid and run.run_id = any(:run_ids::uuid[])

-- name: lock_leases
-- Lock the runs of the items in key order, leaving out what others hold unless :wait, and tell in a later statement how
-- each run stands and what its job is. The fence (attempt, started_at) changes under the run's lock only: what is read
-- after the lock is the truth. `had`: the job's row is locked too, where no heartbeat holds it just now.
select
  lease.run_id, lease.stage_id, lease.workflow_id, lease.version, lease.status, lease.priority, lease.event_sequence,
  lease.redrive_count, lease.traceparent, lease.tracestate, lease.updated_at, lease.now,
  lease.job_status, lease.replay, lease.job_attempt, lease.max_attempts, lease.started_at, lease.had
from tenantry.lock_leases_v1(:tenant_id::uuid, :items::text::json, :wait::boolean) as lease

-- name: stages_of_runs
-- Every stage of these runs, with its output and what its job is doing. For runs whose lock is held.
select
  stage.run_id, stage.stage_id, stage.group_number, stage.number, stage.status, stage.attempt, stage.announced_attempt,
  stage.max_attempts, stage.output::text as output, stage.settled_attempt, stage.settled_started_at, stage.updated_at,
  stage.next_poll_at, stage.deadline, stage.error_message, stage.generation,
  stage.waiting_for::text as waiting_for,
  case when stage.status = 'COMPLETED' then stage.output_digest end as output_digest,
  job.status as job_status, job.attempt as job_attempt, job.locked_at as job_locked_at
from tenantry.workflow_stages as stage
left join tenantry.job_queue as job
  on job.tenant_id = :tenant_id::uuid and job.run_id = stage.run_id and job.stage_id = stage.stage_id
where stage.tenant_id = :tenant_id::uuid and stage.run_id = any(:run_ids::uuid[])
order by stage.run_id, stage.number

-- name: payloads_of_runs
-- What the bodies of these runs are given: the run's input and config, or where they are.
select
  run.run_id, run.input::text as input, run.config::text as config, run.input_digest, run.config_digest,
  tenantry.now() as now
from tenantry.workflow_runs as run
where run.tenant_id = :tenant_id::uuid and run.run_id = any(:run_ids::uuid[])

-- name: former_attempts
-- How often the stages of redriven runs had begun whose rows are gone: those that are created again count on from there.
select run.run_id, run.former_attempts::text as former_attempts
from tenantry.workflow_runs as run
where run.tenant_id = :tenant_id::uuid and run.run_id = any(:run_ids::uuid[]) and run.former_attempts is not null
