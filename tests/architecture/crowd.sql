-- Fifty tenants with a long history and a queue, so that the planner chooses as it would in production. One script, no sections.
insert into tenantry.tenants (tenant_id, slug, name)
select gen_random_uuid(), 'crowd-' || number, 'crowd' from generate_series(1, 50) as number;

insert into tenantry.workflow_runs
  (tenant_id, workflow_id, version, status, ready, rank, available_at, input, created_at, completed_at)
select
  tenants.tenant_id, 'workflow-' || number % 3, 'v1',
  case when number % 100 = 0 then 'PENDING' when number % 100 = 1 then 'RUNNING' when number % 100 = 2 then 'FAILED' else 'COMPLETED' end,
  number % 200 = 0, now(), now() + case when number % 200 = 0 then interval '0' else interval '1 hour' end, '{}',
  now() - interval '1 hour', case when number % 100 > 1 then now() end
from tenantry.tenants, generate_series(1, 600) as number;

insert into tenantry.workflow_run_tags (tenant_id, tag, run_id)
select runs.tenant_id, 'tag-' || row_number() over () % 50, runs.run_id from tenantry.workflow_runs as runs;

insert into tenantry.workflow_stages (tenant_id, run_id, stage_id, group_number, number, status, max_attempts)
select runs.tenant_id, runs.run_id, 'stage-' || number, number, number, 'COMPLETED', 3
from tenantry.workflow_runs as runs, generate_series(1, 2) as number;

insert into tenantry.job_queue
  (tenant_id, run_id, stage_id, workflow_id, version, status, ready, rank, available_at, max_attempts, locked_at, started_at)
select
  runs.tenant_id, runs.run_id, 'stage-3', runs.workflow_id, runs.version,
  case when row_number() over () % 50 = 0 then 'RUNNING' else 'PENDING' end,
  row_number() over () % 50 between 1 and 5, runs.rank, runs.available_at, 3, now(), now()
from tenantry.workflow_runs as runs;

-- Of the jobs above some are parked: their stages sleep.
update tenantry.job_queue set replay = true where status = 'PENDING' and not ready and run_id::text like '%0';

insert into tenantry.workflow_steps (tenant_id, run_id, stage_id, step_id, seq, kind, status, result)
select runs.tenant_id, runs.run_id, 'stage-3', 'step-' || number, number, 'run', 'completed', '{}'
from tenantry.workflow_runs as runs, generate_series(1, 3) as number;

insert into tenantry.outbox_events (tenant_id, run_id, sequence, type, payload)
select runs.tenant_id, runs.run_id, number, 'stage:completed', '{}'
from tenantry.workflow_runs as runs, generate_series(1, 3) as number;

insert into tenantry.idempotency_keys (tenant_id, command, key, run_id, fingerprint, expires_at)
select runs.tenant_id, 'run.create', runs.run_id::text, runs.run_id, '\x00', now() + interval '1 day'
from tenantry.workflow_runs as runs;

insert into tenantry.workflow_logs (tenant_id, run_id, stage_id, attempt, level, message)
select runs.tenant_id, runs.run_id, 'stage-1', 1, 'info', 'done' from tenantry.workflow_runs as runs;

insert into tenantry.workflow_annotations (tenant_id, run_id, key, value)
select runs.tenant_id, runs.run_id, 'key', '1' from tenantry.workflow_runs as runs;

insert into tenantry.spans (tenant_id, run_id, start_time, span_id, trace_id, name, kind, end_time)
select runs.tenant_id, runs.run_id, now(), number, 'trace', 'job.execute', 'CONSUMER', now()
from tenantry.workflow_runs as runs, generate_series(1, 3) as number;

insert into tenantry.workflow_blobs (tenant_id, run_id, digest, content)
select runs.tenant_id, runs.run_id, sha256(number::text::bytea), number::text
from tenantry.workflow_runs as runs, generate_series(1, 2) as number;

analyze
