-- The writes of every command that moves a run. Each takes one JSON array, so that one run and fifty cost the same
-- statements; each is executed with the runs' locks held, which is why none of them checks a state again.
-- Payloads travel as text inside the items: a JSON null is a value, and text comes back as it went in.

-- name: update_runs
-- Move locked runs; `ready` is false for everything but PENDING, and nothing goes back there.
update tenantry.workflow_runs as run
set
  status = item.status,
  version = item.version,
  ready = false,
  event_sequence = item.event_sequence,
  started_at = coalesce(run.started_at, item.started_at),
  completed_at = item.completed_at,
  output = item.output::json,
  error = item.error::json,
  updated_at = item.now
from json_to_recordset(:items::text::json) as item (
  run_id uuid, status text, version text, event_sequence int, started_at timestamptz, completed_at timestamptz,
  output text, error text, now timestamptz
)
where run.tenant_id = :tenant_id::uuid and run.run_id = item.run_id

-- name: insert_stages
-- Create the stages of a group.
insert into tenantry.workflow_stages (
  tenant_id, run_id, stage_id, group_number, number, status, attempt, announced_attempt, max_attempts, created_at,
  started_at, updated_at
)
select
  :tenant_id::uuid, item.run_id, item.stage_id, item.group_number, item.number, item.status, item.attempt,
  item.attempt, item.max_attempts, item.now, item.started_at, item.now
from json_to_recordset(:items::text::json) as item (
  run_id uuid, stage_id text, group_number smallint, number smallint, status text, attempt int, max_attempts smallint,
  started_at timestamptz, now timestamptz
)

-- name: update_stages
-- Move stages of locked runs. What an item leaves out (settled_*, started_at) stays as it was.
update tenantry.workflow_stages as stage
set
  status = item.status,
  attempt = item.attempt,
  announced_attempt = greatest(stage.announced_attempt, item.announced_attempt),
  output = item.output::json,
  error_message = item.error_message,
  next_poll_at = null,
  settled_attempt = coalesce(item.settled_attempt, stage.settled_attempt),
  settled_started_at = coalesce(item.settled_started_at, stage.settled_started_at),
  started_at = coalesce(stage.started_at, item.started_at),
  completed_at = item.completed_at,
  updated_at = item.now,
  version = stage.version + 1
from json_to_recordset(:items::text::json) as item (
  run_id uuid, stage_id text, status text, attempt int, announced_attempt int, output text, error_message text,
  settled_attempt int, settled_started_at timestamptz, started_at timestamptz, completed_at timestamptz, now timestamptz
)
where stage.tenant_id = :tenant_id::uuid and stage.run_id = item.run_id and stage.stage_id = item.stage_id

-- name: insert_jobs
-- Queue stages, or queue and lease them in one go.
insert into tenantry.job_queue (
  tenant_id, run_id, stage_id, workflow_id, version, status, ready, rank, available_at, attempt, max_attempts,
  worker_id, locked_at, started_at, traceparent
)
select
  :tenant_id::uuid, item.run_id, item.stage_id, item.workflow_id, item.version, item.status, item.ready, item.rank,
  item.available_at, item.attempt, item.max_attempts, item.worker_id, item.started_at, item.started_at, item.traceparent
from json_to_recordset(:items::text::json) as item (
  run_id uuid, stage_id text, workflow_id text, version text, status text, ready boolean, rank timestamptz,
  available_at timestamptz, attempt int, max_attempts smallint, worker_id text, started_at timestamptz, traceparent text
)

-- name: update_jobs
-- Lease, reschedule, give back or bury jobs. last_error stays through a lease and until something newer is known.
update tenantry.job_queue as job
set
  status = item.status,
  ready = item.ready,
  rank = coalesce(item.rank, job.rank),
  available_at = coalesce(item.available_at, job.available_at),
  attempt = item.attempt,
  worker_id = item.worker_id,
  locked_at = item.started_at,
  started_at = item.started_at,
  last_error = coalesce(item.last_error, job.last_error)
from json_to_recordset(:items::text::json) as item (
  run_id uuid, stage_id text, status text, ready boolean, rank timestamptz, available_at timestamptz, attempt int,
  worker_id text, started_at timestamptz, last_error text
)
where job.tenant_id = :tenant_id::uuid and job.run_id = item.run_id and job.stage_id = item.stage_id

-- name: delete_jobs
-- Take settled, orphaned and cancelled jobs out of the queue.
delete from tenantry.job_queue as job
using json_to_recordset(:items::text::json) as item (run_id uuid, stage_id text)
where job.tenant_id = :tenant_id::uuid and job.run_id = item.run_id and job.stage_id = item.stage_id

-- name: insert_events
-- Append to the runs' histories; the sequence numbers were counted up under the runs' locks.
insert into tenantry.outbox_events (tenant_id, run_id, sequence, type, stage_id, payload, occurred_at)
select :tenant_id::uuid, item.run_id, item.sequence, item.type, item.stage_id, item.payload, item.now
from json_to_recordset(:items::text::json) as item (
  run_id uuid, sequence int, type text, stage_id text, payload json, now timestamptz
)

-- name: insert_annotations
-- Keep what a stage's body noted, with the outcome it belongs to.
insert into tenantry.workflow_annotations (tenant_id, run_id, stage_id, attempt, key, value, payload, created_at)
select :tenant_id::uuid, item.run_id, item.stage_id, item.attempt, item.key, item.value::json, item.payload::json, item.now
from json_to_recordset(:items::text::json) as item (
  run_id uuid, stage_id text, attempt int, key text, value text, payload text, now timestamptz
)

-- name: insert_definitions
-- Keep the structure that a claimed run is pinned to; content-addressed, so whoever was first wrote the same.
insert into tenantry.workflow_definitions (tenant_id, workflow_id, version, structure_hash, snapshot)
select :tenant_id::uuid, item.workflow_id, item.version, item.structure_hash, item.snapshot
from json_to_recordset(:items::text::json) as item (
  workflow_id text, version text, structure_hash text, snapshot json
)
where not exists (
  select from tenantry.workflow_definitions as kept
  where kept.tenant_id = :tenant_id::uuid and kept.workflow_id = item.workflow_id and kept.version = item.version
)
on conflict (tenant_id, workflow_id, version) do nothing
