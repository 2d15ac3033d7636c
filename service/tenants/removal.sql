-- Everything a tenant owns, deleted as that tenant. Runs go first and a page at a time: a settle or a claim that comes
-- later finds no run to lock and writes nothing.

-- name: lock_page
-- Waits for whoever holds one of the runs, so that the deletes below see all that was written about it.
select run.run_id
from tenantry.workflow_runs as run
where run.tenant_id = :tenant_id::uuid
order by run.run_id
limit :limit::int
for update of run

-- name: delete_tags
delete from tenantry.workflow_run_tags as tag
where tag.tenant_id = :tenant_id::uuid and tag.run_id = any(:run_ids::uuid[])

-- name: delete_stages
delete from tenantry.workflow_stages as stage
where stage.tenant_id = :tenant_id::uuid and stage.run_id = any(:run_ids::uuid[])

-- name: delete_steps
delete from tenantry.workflow_steps as step
where step.tenant_id = :tenant_id::uuid and step.run_id = any(:run_ids::uuid[])

-- name: delete_jobs
delete from tenantry.job_queue as job
where job.tenant_id = :tenant_id::uuid and job.run_id = any(:run_ids::uuid[])

-- name: delete_events
delete from tenantry.outbox_events as event
where event.tenant_id = :tenant_id::uuid and event.run_id = any(:run_ids::uuid[])

-- name: delete_logs
delete from tenantry.workflow_logs as log
where log.tenant_id = :tenant_id::uuid and log.run_id = any(:run_ids::uuid[])

-- name: delete_annotations
delete from tenantry.workflow_annotations as annotation
where annotation.tenant_id = :tenant_id::uuid and annotation.run_id = any(:run_ids::uuid[])

-- name: delete_spans
delete from tenantry.spans as span
where span.tenant_id = :tenant_id::uuid and span.run_id = any(:run_ids::uuid[])

-- name: delete_blobs
delete from tenantry.workflow_blobs as blob
where blob.tenant_id = :tenant_id::uuid and blob.run_id = any(:run_ids::uuid[])

-- name: delete_idempotency_keys
delete from tenantry.idempotency_keys as key
where key.tenant_id = :tenant_id::uuid and key.run_id = any(:run_ids::uuid[])

-- name: delete_runs
delete from tenantry.workflow_runs as run
where run.tenant_id = :tenant_id::uuid and run.run_id = any(:run_ids::uuid[])

-- name: delete_other_idempotency_keys
delete from tenantry.idempotency_keys as key
where key.tenant_id = :tenant_id::uuid

-- name: delete_logs_left
-- Logs are written off the path of a run's lock, so a worker may have added some to a run that is gone.
delete from tenantry.workflow_logs as log
where log.tenant_id = :tenant_id::uuid

-- name: delete_spans_left
-- Spans too are written off the path of a run's lock.
delete from tenantry.spans as span
where span.tenant_id = :tenant_id::uuid

-- name: delete_definitions
delete from tenantry.workflow_definitions as definition
where definition.tenant_id = :tenant_id::uuid

-- name: delete_api_keys
delete from tenantry.api_keys as key
where key.tenant_id = :tenant_id::uuid

-- name: delete_audit_log
delete from tenantry.audit_log as deed
where deed.tenant_id = :tenant_id::uuid

-- name: delete_console_sessions
delete from tenantry.console_sessions as session
where session.tenant_id = :tenant_id::uuid
