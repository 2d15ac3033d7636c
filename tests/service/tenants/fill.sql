-- Rows in every table that a tenant can own: of its runs, of runs that are gone, and of none.

-- name: runs
insert into tenantry.workflow_runs (tenant_id, workflow_id, rank, ready, available_at, input, output)
select :tenant_id::uuid, 'w', now(), false, now(), '1', '{"a": 1}'
from generate_series(1, :runs::int)

-- name: tags
insert into tenantry.workflow_run_tags (tenant_id, tag, run_id)
select tenant_id, 'x', run_id from tenantry.workflow_runs where tenant_id = :tenant_id::uuid

-- name: stages
insert into tenantry.workflow_stages (tenant_id, run_id, stage_id, group_number, number, status, max_attempts)
select tenant_id, run_id, 's', 1, 1, 'PENDING', 3 from tenantry.workflow_runs where tenant_id = :tenant_id::uuid

-- name: jobs
insert into tenantry.job_queue
  (tenant_id, run_id, stage_id, workflow_id, version, ready, rank, available_at, max_attempts)
select tenant_id, run_id, 's', 'w', '', false, now(), now(), 3
from tenantry.workflow_runs where tenant_id = :tenant_id::uuid

-- name: events
insert into tenantry.outbox_events (tenant_id, run_id, sequence, type, payload)
select tenant_id, run_id, 1, 'workflow:created', '{}' from tenantry.workflow_runs where tenant_id = :tenant_id::uuid

-- name: idempotency_keys
insert into tenantry.idempotency_keys (tenant_id, command, key, run_id, fingerprint, expires_at)
select tenant_id, 'run.create', run_id::text, run_id, '', now()
from tenantry.workflow_runs where tenant_id = :tenant_id::uuid

-- name: idempotency_key_without_run
insert into tenantry.idempotency_keys (tenant_id, command, key, fingerprint, expires_at)
values (:tenant_id::uuid, 'other', 'k', '', now())

-- name: logs
insert into tenantry.workflow_logs (tenant_id, run_id, stage_id, attempt, level, message)
select tenant_id, run_id, 's', 1, 'info', 'm' from tenantry.workflow_runs where tenant_id = :tenant_id::uuid

-- name: log_without_run
insert into tenantry.workflow_logs (tenant_id, run_id, stage_id, attempt, level, message)
values (:tenant_id::uuid, gen_random_uuid(), 's', 1, 'info', 'of a run that is gone')

-- name: spans
insert into tenantry.spans (tenant_id, run_id, start_time, span_id, trace_id, name, kind, end_time)
select tenant_id, run_id, now(), repeat('a', 16), repeat('b', 32), 'n', 'INTERNAL', now()
from tenantry.workflow_runs where tenant_id = :tenant_id::uuid

-- name: span_without_run
insert into tenantry.spans (tenant_id, run_id, start_time, span_id, trace_id, name, kind, end_time)
values (:tenant_id::uuid, gen_random_uuid(), now(), repeat('a', 16), repeat('b', 32), 'n', 'INTERNAL', now())

-- name: annotations
insert into tenantry.workflow_annotations (tenant_id, run_id, key, value)
select tenant_id, run_id, 'k', '1' from tenantry.workflow_runs where tenant_id = :tenant_id::uuid

-- name: steps
insert into tenantry.workflow_steps (tenant_id, run_id, stage_id, step_id, kind, status)
select tenant_id, run_id, 's', 'step', 'run', 'completed' from tenantry.workflow_runs where tenant_id = :tenant_id::uuid

-- name: blobs
insert into tenantry.workflow_blobs (tenant_id, run_id, digest, content)
select tenant_id, run_id, sha256('[1]'), '[1]' from tenantry.workflow_runs where tenant_id = :tenant_id::uuid

-- name: definitions
insert into tenantry.workflow_definitions (tenant_id, workflow_id, version, structure_hash, snapshot)
values (:tenant_id::uuid, 'w', 'v', 'h', '{}')

-- name: api_keys
insert into tenantry.api_keys (tenant_id, key_id, name, secret_hash, scopes)
values (:tenant_id::uuid, gen_random_uuid(), 'k', '\x736563726574', '{runs:read}')

-- name: limits
insert into tenantry.tenant_limits (tenant_id, kind, running_jobs)
values (:tenant_id::uuid, 'claim', 1)

-- name: console_sessions
insert into tenantry.console_sessions (tenant_id, token_hash, key_id, expires_at)
values (:tenant_id::uuid, '\x746f6b656e', gen_random_uuid(), now())
