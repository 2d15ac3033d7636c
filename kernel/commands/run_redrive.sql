-- What a redrive does to a run whose lock is held; every statement comes after the lock and the look.

-- name: snapshot
-- The structure that the run is pinned to, for a build that does not serve it.
select kept.snapshot::text as snapshot
from tenantry.workflow_definitions as kept
where kept.tenant_id = :tenant_id::uuid and kept.workflow_id = :workflow_id::text and kept.version = :version::text

-- name: archive
-- Keep what these stages had come to, their outputs as payloads, or their digests (run_annotations.sql looks those up); and, of
-- those whose steps go (:abandoned), under which keys effects are known outside that nobody will ask for again. An
-- attempt that was given back on a stop is superseded like any.
insert into tenantry.workflow_annotations (tenant_id, run_id, stage_id, attempt, key, value, payload, created_at)
select
  :tenant_id::uuid,
  stage.run_id,
  stage.stage_id,
  greatest(stage.attempt, stage.announced_attempt),
  'run.superseded_attempt',
  json_build_object(
    'stage_id', stage.stage_id,
    'status', stage.status,
    'attempt', greatest(stage.attempt, stage.announced_attempt),
    'generation', stage.generation,
    'redrive_count', :redrive_count::int,
    'definition_version', :version::text,
    'error', stage.error_message,
    'completed_at', stage.completed_at,
    'external_keys', coalesce(
      (
        select json_agg(
          json_build_object(
            'step_id', step.step_id, 'external_key', step.external_key, 'status', step.status, 'attempt', step.attempt
          )
          order by step.seq, step.step_id
        )
        from tenantry.workflow_steps as step
        where step.tenant_id = :tenant_id::uuid and step.run_id = :run_id::uuid and step.stage_id = stage.stage_id
          and step.external_key is not null and stage.stage_id = any(:abandoned::text[])
      ),
      '[]'::json
    )
  ),
  case
    when stage.output is not null then json_build_object('output', stage.output)
    when stage.status = 'COMPLETED' then json_build_object('output_digest', encode(stage.output_digest, 'hex'))
  end,
  tenantry.now()
from tenantry.workflow_stages as stage
where stage.tenant_id = :tenant_id::uuid and stage.run_id = :run_id::uuid and stage.stage_id = any(:stage_ids::text[])
order by stage.number

-- name: count_redrive
-- The run is over until Changes says RUNNING, in this transaction; what it remembers of removed stages grows.
update tenantry.workflow_runs as run
set redrive_count = run.redrive_count + 1, former_attempts = :former_attempts::text::json
where run.tenant_id = :tenant_id::uuid and run.run_id = :run_id::uuid
  and run.status in ('COMPLETED', 'FAILED', 'CANCELLED')

-- name: drop_jobs
-- Dead jobs, and leases of workers that have not heard yet: their fences name rows that are gone, so whatever they write
-- about a stage is refused.
delete from tenantry.job_queue as job
where job.tenant_id = :tenant_id::uuid and job.run_id = :run_id::uuid

-- name: drop_stages
-- Stages beyond the one that the run goes on from; created anew when their turn comes.
delete from tenantry.workflow_stages as stage
where stage.tenant_id = :tenant_id::uuid and stage.run_id = :run_id::uuid and stage.stage_id = any(:stage_ids::text[])

-- name: drop_steps
-- Their steps go with them, but for signals that were sent before anybody waited (no place of their own): the sender will
-- not repeat them. Their results in workflow_blobs stay until run.purge: a digest may be another step's, stage's or annotation's
-- of the run as well, and who has read it in one statement reads its payload in a later one, without the run's lock.
delete from tenantry.workflow_steps as step
where step.tenant_id = :tenant_id::uuid and step.run_id = :run_id::uuid and step.stage_id = any(:stage_ids::text[])
  and not (step.kind = 'signal' and step.status = 'completed' and step.seq is null)

-- name: drop_ledger
-- A restart begins with an empty ledger, signals sent ahead included. Results in workflow_blobs stay, as in drop_steps.
delete from tenantry.workflow_steps as step
where step.tenant_id = :tenant_id::uuid and step.run_id = :run_id::uuid

-- name: reopen_stages
-- PENDING again under the same row: attempts count on, the generation, and so every external key, stays. An attempt that was
-- given back on a stop is not taken up again: it was announced in a history that this redrive ends, and what begins now
-- is announced as well.
update tenantry.workflow_stages as stage
set
  status = 'PENDING',
  attempt = greatest(stage.attempt, stage.announced_attempt),
  group_number = item.group_number,
  number = item.number,
  max_attempts = item.max_attempts,
  output = null,
  error_message = null,
  next_poll_at = null,
  waiting_for = null,
  deadline = null,
  started_at = null,
  completed_at = null,
  updated_at = tenantry.now(),
  version = stage.version + 1
from json_to_recordset(:items::text::json) as item (
  stage_id text, group_number smallint, number smallint, max_attempts smallint
)
where stage.tenant_id = :tenant_id::uuid and stage.run_id = :run_id::uuid and stage.stage_id = item.stage_id

-- name: place_stages
-- What is kept stands where the new version has it.
update tenantry.workflow_stages as stage
set group_number = item.group_number, number = item.number
from json_to_recordset(:items::text::json) as item (stage_id text, group_number smallint, number smallint)
where stage.tenant_id = :tenant_id::uuid and stage.run_id = :run_id::uuid and stage.stage_id = item.stage_id

-- name: reopen_steps
-- Unfinished effects are tried again under the same external key, those that must not be replayed too: that is the decision a
-- redrive stands for. Failures are counted anew. A step under a live lease may have its body still: only its own end, or its
-- lease's, opens it. The body is told where an earlier claim was lost: its effect may have been had. What an earlier redrive
-- opened, or a claim gave back before its function began, is still to be told; where its run had ended before it was given back,
-- it is recorded like a function that was cancelled; the last of the claims whose lease was always over by then fails the step.
update tenantry.workflow_steps as step
set
  status = 'pending',
  failures = 0,
  lapses = 0,
  is_reclaim = step.status = 'running'
    or step.error_type is not distinct from 'kernel.step_errors.StepNotReplaySafeError'
    or step.status = 'pending' and step.is_reclaim and (step.claim_id is null or step.error is null)
    or step.is_reclaim and coalesce(
      step.error_type in ('kernel.errors.StageAbortedError', 'kernel.step_errors.StepLeaseTooShortError'), false
    ),
  claim_id = null,
  lease_expires_at = null,
  due_at = tenantry.now(),
  completed_at = null,
  updated_at = tenantry.now()
where step.tenant_id = :tenant_id::uuid and step.run_id = :run_id::uuid and step.stage_id = any(:stage_ids::text[])
  and step.kind = 'run'
  and (step.status in ('pending', 'failed') or step.status = 'running' and step.lease_expires_at <= tenantry.now())

-- name: drop_timers
-- Waits that have not been answered begin anew: their deadlines and wake times belong to the attempt that is over.
delete from tenantry.workflow_steps as step
where step.tenant_id = :tenant_id::uuid and step.run_id = :run_id::uuid and step.stage_id = any(:stage_ids::text[])
  and step.kind <> 'run' and step.status <> 'completed'
