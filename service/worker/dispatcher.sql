-- Who has work? Read across tenants as the scheduler, which sees which tenant has what due and nothing else. Cost grows with
-- what is due and served here; not with tenants, sleeping jobs, unserved versions or queue depth.

-- name: due
-- role: tenantry_scheduler
-- The tenants with ready jobs or runs of the served pairs (a loose scan: one index probe a tenant), and those whose waiting
-- rows came due. A page of tenants a pair, from the cursor on; the caller wraps around.
with served as (
  select pair.workflow_id, pair.version
  from json_to_recordset(:served::text::json) as pair (workflow_id text, version text)
),
ready_jobs as (
  select found.tenant_id
  from served
  cross join lateral (
    with recursive tenants (tenant_id) as (
      (
        select job.tenant_id
        from tenantry.job_queue as job
        where job.workflow_id = served.workflow_id and job.version = served.version and job.ready
          and job.tenant_id >= :after::uuid
        order by job.tenant_id
        limit 1
      )
      union all
      select (
        select job.tenant_id
        from tenantry.job_queue as job
        where job.workflow_id = served.workflow_id and job.version = served.version and job.ready
          and job.tenant_id > tenants.tenant_id
        order by job.tenant_id
        limit 1
      )
      from tenants
      where tenants.tenant_id is not null
    )
    select tenants.tenant_id
    from tenants
    where tenants.tenant_id is not null
    limit :page::int
  ) as found
),
ready_runs as (
  select found.tenant_id
  from served
  cross join lateral (
    with recursive tenants (tenant_id) as (
      (
        select run.tenant_id
        from tenantry.workflow_runs as run
        where run.workflow_id = served.workflow_id and run.version in (served.version, '') and run.ready
          and run.tenant_id >= :after::uuid
        order by run.tenant_id
        limit 1
      )
      union all
      select (
        select run.tenant_id
        from tenantry.workflow_runs as run
        where run.workflow_id = served.workflow_id and run.version in (served.version, '') and run.ready
          and run.tenant_id > tenants.tenant_id
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
  ) as found
),
waiting_jobs as (
  select job.tenant_id
  from tenantry.job_queue as job
  where job.status = 'PENDING' and not job.ready and job.available_at <= tenantry.now()
  order by job.available_at
  limit 1000
),
waiting_runs as (
  select run.tenant_id
  from tenantry.workflow_runs as run
  where run.status = 'PENDING' and not run.ready and run.available_at <= tenantry.now()
  order by run.available_at
  limit 1000
),
due as (
  select ready_jobs.tenant_id, true as is_ready from ready_jobs
  union all
  select ready_runs.tenant_id, true from ready_runs
  union all
  select waiting_jobs.tenant_id, false from waiting_jobs
  union all
  select waiting_runs.tenant_id, false from waiting_runs
)
select
  due.tenant_id,
  bool_or(due.is_ready) as is_ready,
  coalesce(min(tenant.weight), 1) as weight,
  coalesce(min(tenant.status), 'active') as status
from due
left join tenantry.tenants as tenant on tenant.tenant_id = due.tenant_id
group by due.tenant_id
order by due.tenant_id

-- name: leases
-- role: tenantry_scheduler
-- A page of the leases there are, in tenant order from a cursor: the tenants of those that ran out, and where the page ended.
select
  page.tenant_id,
  bool_or(
    page.locked_at <= tenantry.now() - :stale_after::interval
    or :absolute_timeout::interval > interval '0'
    and page.started_at <= tenantry.now() - :absolute_timeout::interval
  ) as has_lapsed,
  count(*)::int as running
from (
  select job.tenant_id, job.locked_at, job.started_at
  from tenantry.job_queue as job
  where job.status = 'RUNNING' and job.tenant_id > :after::uuid
  order by job.tenant_id
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
