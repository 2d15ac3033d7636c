-- Who has work? Read across tenants as the scheduler, which sees which tenant has what due and nothing else. Cost grows with
-- what is due and served here; not with tenants, sleeping jobs, unserved versions or queue depth.

-- name: due
-- role: tenantry_scheduler
-- The tenants with ready work of the served pairs, a page of them from the cursor on (the caller wraps around), and those
-- whose waiting rows came due. The function's text is in the migrations (0003): it is asked forty times a second.
select
  due.tenant_id, due.is_waiting, due.was_walked, due.weight, due.status, due.jobs::text as jobs, due.runs::text as runs
from tenantry.due_tenants_v2(:served::text::json, :after::uuid, :page::int) as due

-- name: due_from
-- role: tenantry_scheduler
-- The same, passing the dead entries of the tenants that come with floors.
select
  due.tenant_id, due.is_waiting, due.was_walked, due.weight, due.status, due.jobs::text as jobs, due.runs::text as runs
from tenantry.due_tenants_from_v1(:served::text::json, :after::uuid, :page::int, :floors::text::json) as due

-- name: leases
-- role: tenantry_scheduler
-- A page of the leases there are, in tenant order from a cursor: the tenants of those that ran out, and where the page ended.
-- What lapses first comes first: the page may end within a tenant's leases, and the next one begins with the next tenant.
-- A lease of a replay is the one that is due later than it began: when it is, its worker has not set that ahead for too long.
select
  page.tenant_id,
  bool_or(
    page.locked_at <= tenantry.now() - :stale_after::interval
    or page.available_at > page.started_at and page.available_at <= tenantry.now()
    or :absolute_timeout::interval > interval '0'
    and page.started_at <= tenantry.now() - :absolute_timeout::interval
  ) as has_lapsed,
  count(*)::int as running
from (
  select job.tenant_id, job.available_at, job.locked_at, job.started_at
  from tenantry.job_queue as job
  where job.status = 'RUNNING' and job.tenant_id > :after::uuid
  order by
    job.tenant_id,
    least(
      job.locked_at + :stale_after::interval,
      case when job.available_at > job.started_at then job.available_at end,
      case when :absolute_timeout::interval > interval '0' then job.started_at + :absolute_timeout::interval end
    )
  limit 1000
) as page
group by page.tenant_id
order by page.tenant_id

-- name: running_tenants
-- role: tenantry_scheduler
-- A page of the tenants that have a RUNNING run, from a cursor on: a stuck run is never due, so somebody has to look.
with recursive tenants (tenant_id) as (
  (
    select run.tenant_id
    from tenantry.workflow_runs as run
    where run.status = 'RUNNING' and run.tenant_id > :after::uuid
    order by run.tenant_id
    limit 1
  )
  union all
  select (
    select run.tenant_id
    from tenantry.workflow_runs as run
    where run.status = 'RUNNING' and run.tenant_id > tenants.tenant_id
    order by run.tenant_id
    limit 1
  )
  from tenants
  where tenants.tenant_id is not null
)
select tenants.tenant_id
from tenants
where tenants.tenant_id is not null
limit :page::int

-- name: all_tenants
-- role: tenantry_scheduler
-- A page of the list of tenants, from a cursor on: retention and expired keys concern tenants at rest too.
select tenant.tenant_id
from tenantry.tenants as tenant
where tenant.tenant_id > :after::uuid and tenant.status <> 'deleting'
order by tenant.tenant_id
limit :page::int

-- name: served_depth
-- role: tenantry_scheduler
-- How much of it this build serves and for how long that has been due, by the index that claims use: 10,000 rows of each kind.
select
  count(*)::float8 as depth,
  coalesce(greatest(extract(epoch from tenantry.now() - min(due.available_at)), 0), 0)::float8 as oldest_age_s
from (
  (
    select job.available_at
    from json_to_recordset(:served::text::json) as pair (workflow_id text, version text)
    cross join lateral (
      select queued.available_at
      from tenantry.job_queue as queued
      where queued.workflow_id = pair.workflow_id and queued.version = pair.version and queued.ready
      limit 10000
    ) as job
    limit 10000
  )
  union all
  (
    select run.available_at
    from (
      select pair.workflow_id, pair.version
      from json_to_recordset(:served::text::json) as pair (workflow_id text, version text)
      union
      -- A run that names no version takes the one of whoever claims it.
      select pair.workflow_id, ''
      from json_to_recordset(:served::text::json) as pair (workflow_id text, version text)
    ) as pairs
    cross join lateral (
      select pending.available_at
      from tenantry.workflow_runs as pending
      where pending.workflow_id = pairs.workflow_id and pending.version = pairs.version and pending.ready
      limit 10000
    ) as run
    limit 10000
  )
) as due

-- name: depth
-- role: tenantry_scheduler
-- How much is due and for how long, over all tenants, as far as 10,000 rows tell: for autoscaling and alerts.
select
  (select count(*) from (select from tenantry.job_queue as job where job.ready limit 10000) as jobs)::float8
    + (select count(*) from (select from tenantry.workflow_runs as run where run.ready limit 10000) as runs)::float8
    as depth,
  (select count(*) from (select from tenantry.job_queue as job where job.status = 'RUNNING' limit 10000) as leases)::float8
    as running,
  greatest(
    extract(epoch from tenantry.now() - (
      select min(job.available_at)
      from (select queued.available_at from tenantry.job_queue as queued where queued.ready limit 10000) as job
    )),
    extract(epoch from tenantry.now() - (
      select min(run.available_at)
      from (select pending.available_at from tenantry.workflow_runs as pending where pending.ready limit 10000) as run
    )),
    0
  )::float8 as oldest_age_s
