-- name: lock_old
-- Lock the oldest terminal runs, leaving out what others hold. A run completed before an instant was created before it, so
-- the ids' own time bounds the scan of the primary key.
select run.run_id
from tenantry.workflow_runs as run
where run.tenant_id = :tenant_id::uuid
  and run.run_id < tenantry.uuid7_floor(:older_than::timestamptz)
  and run.completed_at < :older_than::timestamptz
  and run.status = any(:statuses::text[])
order by run.run_id
limit :limit::int
for update of run skip locked

-- name: delete_events
-- Children first, by the runs' keys: no foreign key does it for us.
delete from tenantry.outbox_events as event
where event.tenant_id = :tenant_id::uuid and event.run_id = any(:run_ids::uuid[])

-- name: delete_stages
-- The stages of purged runs.
delete from tenantry.workflow_stages as stage
where stage.tenant_id = :tenant_id::uuid and stage.run_id = any(:run_ids::uuid[])

-- name: delete_jobs
-- What is left in the queue of runs that are over: dead jobs, and leases whose bodies never came back.
delete from tenantry.job_queue as job
where job.tenant_id = :tenant_id::uuid and job.run_id = any(:run_ids::uuid[])

-- name: delete_tags
-- The tags of purged runs.
delete from tenantry.workflow_run_tags as tag
where tag.tenant_id = :tenant_id::uuid and tag.run_id = any(:run_ids::uuid[])

-- name: delete_steps
-- The steps of purged runs.
delete from tenantry.workflow_steps as step
where step.tenant_id = :tenant_id::uuid and step.run_id = any(:run_ids::uuid[])

-- name: delete_logs
-- The logs of purged runs.
delete from tenantry.workflow_logs as log
where log.tenant_id = :tenant_id::uuid and log.run_id = any(:run_ids::uuid[])

-- name: delete_annotations
-- The annotations of purged runs.
delete from tenantry.workflow_annotations as annotation
where annotation.tenant_id = :tenant_id::uuid and annotation.run_id = any(:run_ids::uuid[])

-- name: delete_spans
-- The spans of purged runs.
delete from tenantry.spans as span
where span.tenant_id = :tenant_id::uuid and span.run_id = any(:run_ids::uuid[])

-- name: delete_blobs
-- The large payloads of purged runs.
delete from tenantry.workflow_blobs as blob
where blob.tenant_id = :tenant_id::uuid and blob.run_id = any(:run_ids::uuid[])

-- name: delete_keys
-- The idempotency keys of purged runs: what they answered with is gone.
delete from tenantry.idempotency_keys as kept
where kept.tenant_id = :tenant_id::uuid and kept.run_id = any(:run_ids::uuid[])

-- name: delete_runs
-- The runs themselves, last.
delete from tenantry.workflow_runs as run
where run.tenant_id = :tenant_id::uuid and run.run_id = any(:run_ids::uuid[])
