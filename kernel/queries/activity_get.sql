-- What a tenant's runs have been doing lately. A window is a range of the runs' key, which is made of time; events and stages
-- are read run by run, by theirs, and never more than a bounded number of them.

-- name: frame
-- Where the window begins: at a whole multiple of a slice, so that slices do not wander with every look.
select tenantry.now() as now, date_bin(:width::interval, tenantry.now() - :window::interval, timestamptz 'epoch') as since

-- name: throughput
-- Runs by the slice in which they were created and by what became of them.
select
  floor(extract(epoch from recent.created_at - :since::timestamptz) / extract(epoch from :width::interval))::int as slice,
  recent.status, count(*)::int as runs
from (
  select run.created_at, run.status
  from tenantry.workflow_runs as run
  where run.tenant_id = :tenant_id::uuid and run.run_id >= tenantry.uuid7_floor(:since::timestamptz)
  order by run.run_id desc
  limit :most_runs::int
) as recent
group by slice, recent.status
order by slice, recent.status

-- name: executions
-- Every execution of a stage, from its start to what comes next of that stage: its end, its retry, or its first wait.
with recent as (
  select run.run_id, run.workflow_id
  from tenantry.workflow_runs as run
  where run.tenant_id = :tenant_id::uuid and run.run_id >= tenantry.uuid7_floor(:since::timestamptz)
  order by run.run_id desc
  limit :most_runs::int
),
marks as (
  select
    recent.workflow_id, mark.stage_id, mark.type, mark.is_lease_lost,
    extract(epoch from
      lead(mark.occurred_at) over (partition by recent.run_id, mark.stage_id order by mark.sequence) - mark.occurred_at
    )::float8 as lasted_s
  from recent
  cross join lateral (
    select
      event.sequence, event.stage_id, event.type, event.occurred_at, coalesce(event.payload ->> 'error' like 'LEASE\_%', false)
        as is_lease_lost
    from tenantry.outbox_events as event
    where event.tenant_id = :tenant_id::uuid and event.run_id = recent.run_id and event.type in (
      'stage:started', 'stage:completed', 'stage:suspended', 'stage:retrying', 'stage:failed'
    )
    order by event.sequence
    limit :most_events::int
  ) as mark
)
select
  marks.workflow_id, marks.stage_id,
  count(*) filter (where marks.type = 'stage:started')::int as executions,
  count(*) filter (where marks.type = 'stage:retrying')::int as retries,
  count(*) filter (where marks.type = 'stage:failed')::int as failures,
  count(*) filter (where marks.is_lease_lost)::int as leases_lost,
  percentile_cont(0.5) within group (order by marks.lasted_s) filter (where marks.type = 'stage:started') as run_p50_s,
  percentile_cont(0.95) within group (order by marks.lasted_s) filter (where marks.type = 'stage:started') as run_p95_s
from marks
where marks.stage_id is not null
group by marks.workflow_id, marks.stage_id
order by marks.workflow_id, marks.stage_id

-- name: waits
-- How long stages were in line before they first started; those of the first group were in line with their run. A redrive
-- starts stages anew, so a run that had one tells nothing of it.
select
  recent.workflow_id, stage.stage_id,
  percentile_cont(0.5) within group (order by stage.waited_s) as wait_p50_s,
  percentile_cont(0.95) within group (order by stage.waited_s) as wait_p95_s
from (
  select run.run_id, run.workflow_id, run.available_at
  from tenantry.workflow_runs as run
  where run.tenant_id = :tenant_id::uuid
    and run.run_id >= tenantry.uuid7_floor(:since::timestamptz)
    and run.redrive_count = 0
  order by run.run_id desc
  limit :most_runs::int
) as recent
cross join lateral (
  select
    staged.stage_id,
    greatest(
      extract(epoch from
        staged.started_at - case when staged.group_number = 1 then recent.available_at else staged.created_at end
      )::float8,
      0
    ) as waited_s
  from tenantry.workflow_stages as staged
  where staged.tenant_id = :tenant_id::uuid and staged.run_id = recent.run_id and staged.started_at is not null
) as stage
group by recent.workflow_id, stage.stage_id
