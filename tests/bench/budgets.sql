-- The crowds that the budgets are measured in, put in by the superuser. What is not given is as the product leaves it.

-- name: add_history
-- A completed run for each tenant, and a job that is due in a month.
with old_runs as (
  insert into tenantry.workflow_runs (
    tenant_id, run_id, workflow_id, version, status, rank, ready, available_at, input, output, started_at, completed_at
  )
  select
    tenant.tenant_id, tenantry.uuid7(), :workflow::text, :version::text, 'COMPLETED', tenantry.now(), false,
    tenantry.now(), '{}', '{}', tenantry.now(), tenantry.now()
  from tenantry.tenants as tenant
)
insert into tenantry.job_queue (
  tenant_id, run_id, stage_id, workflow_id, version, ready, rank, available_at, max_attempts
)
select
  tenant.tenant_id, tenantry.uuid7(), 'add', :workflow::text, :version::text, false, tenantry.now() + interval '1 month',
  tenantry.now() + interval '1 month', 3
from tenantry.tenants as tenant

-- name: add_waiting_jobs
-- Jobs of one tenant that are not due.
insert into tenantry.job_queue (
  tenant_id, run_id, stage_id, workflow_id, version, ready, rank, available_at, max_attempts
)
select
  :tenant_id::uuid, gen_random_uuid(), 'add', :workflow::text, :version::text, false, due.at, due.at, 3
from generate_series(1, :count::int) as made (number)
cross join lateral (select tenantry.now() + interval '1 day' + made.number * interval '1 second' as at) as due

-- name: add_due_jobs
-- A ready job for each of so many tenants.
insert into tenantry.job_queue (
  tenant_id, run_id, stage_id, workflow_id, version, ready, rank, available_at, max_attempts
)
select tenant.tenant_id, gen_random_uuid(), 'add', :workflow::text, :version::text, true, tenantry.now(), tenantry.now(), 3
from (select chosen.tenant_id from tenantry.tenants as chosen order by chosen.tenant_id limit :count::int) as tenant

-- name: add_pending
-- Runs of a tenant, due a second apart in the order of their creation: ready ones in the past, the others from tomorrow on.
insert into tenantry.workflow_runs (
  tenant_id, run_id, workflow_id, version, rank, ready, available_at, input, event_sequence
)
select
  :tenant_id::uuid, tenantry.uuid7(), :workflow::text, :version::text, due.at - interval '300 seconds', :ready::boolean,
  due.at, json_build_object('n', made.number), 1
from generate_series(1, :count::int) as made (number)
cross join lateral (
  select tenantry.now()
    + case when :ready::boolean then made.number - :count::int else made.number + 86400 end * interval '1 second' as at
) as due

-- name: add_jobs_of_runs
-- A job of the first stage for each run of a tenant, waiting as its run does.
insert into tenantry.job_queue (
  tenant_id, run_id, stage_id, workflow_id, version, ready, rank, available_at, max_attempts
)
select run.tenant_id, run.run_id, 'add', run.workflow_id, run.version, run.ready, run.rank, run.available_at, 3
from tenantry.workflow_runs as run
where run.tenant_id = :tenant_id::uuid

-- name: settle_statistics
-- What autovacuum does in time.
vacuum (analyze) tenantry.workflow_runs, tenantry.job_queue, tenantry.tenants

-- name: bind
-- Role and tenant of one transaction.
select set_config('role', :role::text, true), set_config('tenantry.tenant_id', :tenant_id::text, true)

-- name: forget_plans
-- What a server connection's first call finds.
discard plans
