-- A tenant's rows as JSON, one a line, as that tenant sees them. Hashes of secrets stay out.

-- name: export_limits
select 'tenant_limits' as kind, row_to_json(item)::text as line
from (
  select kind, running_jobs, pending_runs, runs_per_minute, payload_bytes
  from tenantry.tenant_limits
  where tenant_id = :tenant_id::uuid
  order by kind
) as item

-- name: export_api_keys
select 'api_keys' as kind, row_to_json(item)::text as line
from (
  select key_id, name, scopes, created_at, expires_at, revoked_at, last_used_at
  from tenantry.api_keys
  where tenant_id = :tenant_id::uuid
  order by key_id
) as item

-- name: export_console_sessions
select 'console_sessions' as kind, row_to_json(item)::text as line
from (
  select key_id, created_at, expires_at
  from tenantry.console_sessions
  where tenant_id = :tenant_id::uuid
  order by created_at, token_hash
) as item

-- name: export_definitions
select 'workflow_definitions' as kind, row_to_json(item)::text as line
from (
  select workflow_id, version, structure_hash, snapshot, created_at
  from tenantry.workflow_definitions
  where tenant_id = :tenant_id::uuid
  order by workflow_id, version
) as item

-- name: export_audit_log
select 'audit_log' as kind, row_to_json(item)::text as line
from (
  select audit_id, actor, action, details, occurred_at
  from tenantry.audit_log
  where tenant_id = :tenant_id::uuid
  order by audit_id
) as item

-- name: run_page
select run.run_id
from tenantry.workflow_runs as run
where run.tenant_id = :tenant_id::uuid and run.run_id > :after::uuid
order by run.run_id
limit :limit::int

-- name: export_runs
select 'workflow_runs' as kind, row_to_json(item)::text as line
from (
  select
    run_id, workflow_id, version, status, priority, available_at, input, config, output, encode(input_digest, 'hex') as input_digest,
    encode(config_digest, 'hex') as config_digest,
    case when status = 'COMPLETED' and output is null then encode(output_digest, 'hex') end as output_digest,
    error, redrive_count, created_at, started_at, completed_at, traceparent, tracestate
  from tenantry.workflow_runs
  where tenant_id = :tenant_id::uuid and run_id = any(:run_ids::uuid[])
  order by run_id
) as item

-- name: export_tags
select 'workflow_run_tags' as kind, row_to_json(item)::text as line
from (
  select run_id, tag
  from tenantry.workflow_run_tags
  where tenant_id = :tenant_id::uuid and run_id = any(:run_ids::uuid[])
  order by run_id, tag
) as item

-- name: export_stages
select 'workflow_stages' as kind, row_to_json(item)::text as line
from (
  select
    run_id, stage_id, group_number, number, status, attempt, max_attempts, output,
    case when status = 'COMPLETED' and output is null then encode(output_digest, 'hex') end as output_digest,
    error_message, next_poll_at, deadline, created_at, started_at, completed_at
  from tenantry.workflow_stages
  where tenant_id = :tenant_id::uuid and run_id = any(:run_ids::uuid[])
  order by run_id, number
) as item

-- name: export_jobs
select 'job_queue' as kind, row_to_json(item)::text as line
from (
  select run_id, stage_id, status, available_at, attempt, max_attempts, locked_at, started_at, last_error
  from tenantry.job_queue
  where tenant_id = :tenant_id::uuid and run_id = any(:run_ids::uuid[])
  order by run_id, stage_id
) as item

-- name: export_steps
select 'workflow_steps' as kind, row_to_json(item)::text as line
from (
  select
    run_id, stage_id, step_id, seq, kind, status, attempt, external_key, result,
    encode(result_digest, 'hex') as result_digest, error, due_at, deadline_at, created_at, completed_at
  from tenantry.workflow_steps
  where tenant_id = :tenant_id::uuid and run_id = any(:run_ids::uuid[])
  order by run_id, stage_id, step_id
) as item

-- name: export_events
select 'outbox_events' as kind, row_to_json(item)::text as line
from (
  select run_id, sequence, type, stage_id, payload, occurred_at
  from tenantry.outbox_events
  where tenant_id = :tenant_id::uuid and run_id = any(:run_ids::uuid[])
  order by run_id, sequence
) as item

-- name: export_logs
select 'workflow_logs' as kind, row_to_json(item)::text as line
from (
  select run_id, log_id, stage_id, attempt, level, message, fields, created_at
  from tenantry.workflow_logs
  where tenant_id = :tenant_id::uuid and run_id = any(:run_ids::uuid[])
  order by run_id, log_id
) as item

-- name: export_annotations
select 'workflow_annotations' as kind, row_to_json(item)::text as line
from (
  select run_id, annotation_id, stage_id, attempt, key, value, payload, created_at
  from tenantry.workflow_annotations
  where tenant_id = :tenant_id::uuid and run_id = any(:run_ids::uuid[])
  order by run_id, annotation_id
) as item

-- name: export_spans
select 'spans' as kind, row_to_json(item)::text as line
from (
  select
    run_id, trace_id, span_id, parent_span_id, name, kind, start_time, end_time, status, attributes, links
  from tenantry.spans
  where tenant_id = :tenant_id::uuid and run_id = any(:run_ids::uuid[])
  order by run_id, start_time, span_id
) as item

-- name: blobs_of_runs
-- Which large payloads there are; each is read by itself.
select blob.run_id, blob.digest
from tenantry.workflow_blobs as blob
where blob.tenant_id = :tenant_id::uuid and blob.run_id = any(:run_ids::uuid[])
order by blob.run_id, blob.digest

-- name: export_blob
-- One large payload; what a run, a stage or a step names by its digest.
select 'workflow_blobs' as kind, row_to_json(item)::text as line
from (
  select run_id, encode(digest, 'hex') as digest, content::json as content
  from tenantry.workflow_blobs
  where tenant_id = :tenant_id::uuid and run_id = :run_id::uuid and digest = :digest::bytea
) as item

-- name: export_idempotency_keys
select 'idempotency_keys' as kind, row_to_json(item)::text as line
from (
  select command, key, run_id, created_at, expires_at
  from tenantry.idempotency_keys
  where tenant_id = :tenant_id::uuid and run_id = any(:run_ids::uuid[])
  order by command, key
) as item
