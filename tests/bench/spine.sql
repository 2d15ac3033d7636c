-- Runs put into the product's tables at once, and the proof that they came out right. Sent by the superuser.

-- name: add_tenants
-- Tenants in the order of their number.
insert into tenantry.tenants (tenant_id, slug, name)
select gen_random_uuid(), :prefix::text || made.number, :prefix::text || made.number
from generate_series(1, :count::int) as made (number)
returning tenant_id

-- name: add_runs
-- PENDING runs as run.create leaves them, dealt out to the tenants in turn; the input is the run's number.
insert into tenantry.workflow_runs (
  tenant_id, run_id, workflow_id, version, rank, ready, available_at, input, event_sequence
)
select
  (:tenants::uuid[])[1 + made.number % cardinality(:tenants::uuid[])], tenantry.uuid7(), :workflow::text, :version::text,
  tenantry.now() - interval '300 seconds', true, tenantry.now(), json_build_object('n', made.number), 1
from generate_series(1, :count::int) as made (number)

-- name: add_events
-- Their first events.
insert into tenantry.outbox_events (tenant_id, run_id, sequence, type, payload)
select run.tenant_id, run.run_id, 1, 'workflow:created', '{}'
from tenantry.workflow_runs as run
where run.tenant_id = any(:tenants::uuid[]) and run.event_sequence = 1 and run.status = 'PENDING'

-- name: is_open
-- Whether a run is not over yet.
select exists (
  select from tenantry.workflow_runs as run
  where run.status in ('PENDING', 'RUNNING') and run.tenant_id = any(:tenants::uuid[])
) as is_open

-- name: settled_jobs
-- How many jobs were taken out of the queue, as the statistics know it (a second late).
select coalesce(max(statistics.n_tup_del), 0) as deleted
from pg_stat_user_tables as statistics
where statistics.schemaname = 'tenantry' and statistics.relname = 'job_queue'

-- name: span
-- From the first start (or creation) to the completion of the last of the first so many runs.
select
  count(*) as completed,
  min(run.created_at) as created_at,
  min(run.started_at) as started_at,
  max(run.completed_at) as completed_at
from (
  select over.created_at, over.started_at, over.completed_at
  from tenantry.workflow_runs as over
  where over.tenant_id = any(:tenants::uuid[]) and over.status = 'COMPLETED'
  order by over.completed_at
  limit :first::int
) as run

-- name: by_index
-- For this transaction.
set local enable_seqscan = off

-- name: faults
-- Completed runs that are not right: output, stages, attempts, steps, jobs left behind, or a history with a gap or a repeat.
select count(*) as wrong
from tenantry.workflow_runs as run
where run.tenant_id = any(:tenants::uuid[])
  and run.status = 'COMPLETED'
  and (
    (run.output ->> 'n')::int is distinct from (run.input ->> 'n')::int * :factor::int + :shift::int
    or exists (
      select from tenantry.job_queue as job where job.tenant_id = run.tenant_id and job.run_id = run.run_id
    )
    or (
      select count(*) filter (where stage.status = 'COMPLETED' and stage.attempt = 1)
      from tenantry.workflow_stages as stage
      where stage.tenant_id = run.tenant_id and stage.run_id = run.run_id
    ) <> :stages::int
    or (
      select array[count(*), count(*) filter (where step.status = 'completed' and step.kind = 'run' and step.attempt = 1)]
      from tenantry.workflow_steps as step
      where step.tenant_id = run.tenant_id and step.run_id = run.run_id
    ) <> array[:steps::bigint, :steps::bigint]
    or (
      select array_agg(event.type order by event.sequence)
      from tenantry.outbox_events as event
      where event.tenant_id = run.tenant_id and event.run_id = run.run_id
    ) is distinct from :events::text[]
  )

-- name: latency
-- When a run's first body ran its first line (by the machine's clock, from its output) and when it was over.
select
  (run.output ->> 'at')::float8 as first_line_at,
  extract(epoch from run.completed_at)::float8 as completed_at,
  (run.output ->> 'n')::int as n
from tenantry.workflow_runs as run
where run.run_id = :run_id::uuid and run.status = 'COMPLETED'

-- name: created
-- How many runs there are.
select count(*) as runs from tenantry.workflow_runs as run where run.tenant_id = any(:tenants::uuid[])
