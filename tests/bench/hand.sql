-- The same durable writes as the product's for runs of three stages, by hand: every statement serves a batch that moves in
-- step, nothing is asked that is known. No engine could do with less; what it lacks is everything an engine is for.

-- name: bind
-- As tenancy binds: role and tenant for this transaction.
select set_config('role', 'tenantry_tenant', true), set_config('tenantry.tenant_id', :tenant_id::text, true)

-- name: claim
-- Start the next ready runs.
update tenantry.workflow_runs as run
set status = 'RUNNING', ready = false, event_sequence = 3, started_at = tenantry.now(), updated_at = tenantry.now()
from (
  select candidate.run_id
  from tenantry.workflow_runs as candidate
  where candidate.tenant_id = :tenant_id::uuid and candidate.workflow_id = :workflow::text
    and candidate.version = :version::text and candidate.ready
  order by candidate.rank
  limit :limit::int
  for no key update of candidate skip locked
) as due
where run.tenant_id = :tenant_id::uuid and run.run_id = due.run_id
returning run.run_id, (run.input ->> 'n')::int as n

-- name: advance_runs
-- Count the events on; the run's row is also the lock of everything that follows.
update tenantry.workflow_runs as run
set event_sequence = :sequence::int, updated_at = tenantry.now()
from json_to_recordset(:items::text::json) as item (run_id uuid)
where run.tenant_id = :tenant_id::uuid and run.run_id = item.run_id and run.status = 'RUNNING'

-- name: complete_runs
-- The end of the runs.
update tenantry.workflow_runs as run
set
  status = 'COMPLETED', event_sequence = :sequence::int, output = item.output::json, completed_at = tenantry.now(),
  updated_at = tenantry.now()
from json_to_recordset(:items::text::json) as item (run_id uuid, output text)
where run.tenant_id = :tenant_id::uuid and run.run_id = item.run_id and run.status = 'RUNNING'

-- name: open_stages
-- The next stage of each run, begun.
insert into tenantry.workflow_stages (
  tenant_id, run_id, stage_id, group_number, number, status, attempt, announced_attempt, max_attempts, started_at
)
select
  :tenant_id::uuid, item.run_id, :stage_id::text, :number::smallint, :number::smallint, 'RUNNING', 1, 1, 3,
  tenantry.now()
from json_to_recordset(:items::text::json) as item (run_id uuid)

-- name: open_jobs
-- Its job, leased.
insert into tenantry.job_queue (
  tenant_id, run_id, stage_id, workflow_id, version, status, ready, rank, available_at, attempt, max_attempts, worker_id,
  locked_at, started_at
)
select
  :tenant_id::uuid, item.run_id, :stage_id::text, :workflow::text, :version::text, 'RUNNING', false, tenantry.now(),
  tenantry.now(), 1, 3, 'hand', tenantry.now(), tenantry.now()
from json_to_recordset(:items::text::json) as item (run_id uuid)

-- name: complete_stages
-- The outcome of a stage.
update tenantry.workflow_stages as stage
set
  status = 'COMPLETED', output = item.output::json, completed_at = tenantry.now(), updated_at = tenantry.now(),
  settled_attempt = 1, settled_started_at = stage.started_at, version = stage.version + 1
from json_to_recordset(:items::text::json) as item (run_id uuid, output text)
where stage.tenant_id = :tenant_id::uuid and stage.run_id = item.run_id and stage.stage_id = :stage_id::text
  and stage.status = 'RUNNING'

-- name: delete_jobs
-- Its job, done.
delete from tenantry.job_queue as job
using json_to_recordset(:items::text::json) as item (run_id uuid)
where job.tenant_id = :tenant_id::uuid and job.run_id = item.run_id and job.stage_id = :stage_id::text

-- name: add_events
-- The same events of every run of the batch.
insert into tenantry.outbox_events (tenant_id, run_id, sequence, type, stage_id, payload)
select :tenant_id::uuid, item.run_id, event.sequence, event.type, event.stage_id, event.payload
from json_to_recordset(:items::text::json) as item (run_id uuid)
cross join json_to_recordset(:events::text::json) as event (sequence int, type text, stage_id text, payload json)
