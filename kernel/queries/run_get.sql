-- One run. Payloads travel as text: what came in goes out byte for byte.

-- name: run
-- The run by its key, with its tags in order.
select
  run.run_id, run.workflow_id, nullif(run.version, '') as version, run.status, run.priority,
  run.input::text as input, run.config::text as config, run.output::text as output, run.error::text as error,
  run.input_digest, run.config_digest, case when run.status = 'COMPLETED' then run.output_digest end as output_digest,
  run.redrive_count, run.created_at, run.available_at as run_at, run.started_at, run.completed_at, run.traceparent,
  array(
    select tagged.tag
    from tenantry.workflow_run_tags as tagged
    where tagged.tenant_id = :tenant_id::uuid and tagged.run_id = :run_id::uuid
    order by tagged.tag
  ) as tags
from tenantry.workflow_runs as run
where run.tenant_id = :tenant_id::uuid and run.run_id = :run_id::uuid

-- name: stages
-- The stages that exist, in definition order. Read after the run: a stage may be ahead of it, never behind.
select
  stage.stage_id, stage.group_number, stage.number, stage.status, stage.attempt, stage.max_attempts, stage.error_message,
  stage.started_at, stage.completed_at, stage.next_poll_at, stage.waiting_for::text as waiting_for
from tenantry.workflow_stages as stage
where stage.tenant_id = :tenant_id::uuid and stage.run_id = :run_id::uuid
order by stage.number

-- name: progress
-- How far the run is, without its payloads: for those who wait.
select run.status, run.event_sequence
from tenantry.workflow_runs as run
where run.tenant_id = :tenant_id::uuid and run.run_id = :run_id::uuid

-- name: definition
-- The structure a run was claimed under, for a build that does not serve that version.
select kept.snapshot::text as snapshot
from tenantry.workflow_definitions as kept
where kept.tenant_id = :tenant_id::uuid and kept.workflow_id = :workflow_id::text and kept.version = :version::text
