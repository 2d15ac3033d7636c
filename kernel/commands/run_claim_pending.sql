-- name: claim
-- Lock the next ready runs of the served (workflow, version) pairs, leaving out what others hold; '' is an unpinned run.
-- Decides from the rows it locks alone: status and readiness are looked at again once the lock is had. Lanes and heads are
-- those of job.claim.
with lanes as materialized (
  select
    served.workflow_id, served.version, level.priority,
    coalesce((served.floors ->> level.priority::text)::timestamptz, '-infinity') as floor
  from json_to_recordset(:served::text::json) as served (workflow_id text, version text, floors json)
  cross join generate_series(0, 9) as level (priority)
),
heads as (
  select lanes.workflow_id, lanes.version, lanes.priority, lanes.floor
  from lanes
  cross join lateral (
    select ahead.rank
    from tenantry.workflow_runs as ahead
    where ahead.tenant_id = :tenant_id::uuid
      and ahead.workflow_id = lanes.workflow_id
      and ahead.version = lanes.version
      and ahead.priority = lanes.priority
      and ahead.rank >= lanes.floor
      and ahead.ready
    order by ahead.rank
    limit :limit::int
  ) as head
  order by head.rank
  limit :limit::int
),
shares as (
  select heads.workflow_id, heads.version, heads.priority, heads.floor, count(*) as runs
  from heads
  group by heads.workflow_id, heads.version, heads.priority, heads.floor
)
select
  run.run_id, run.workflow_id, run.version, run.status, run.priority, run.event_sequence, run.redrive_count,
  run.traceparent, run.tracestate, run.updated_at, tenantry.now() as now,
  run.input::text as input, run.config::text as config, run.available_at, run.rank,
  run.workflow_id as lane_workflow_id, run.version as lane_version, run.priority as lane_priority
from shares
cross join lateral (
  select candidate.*
  from tenantry.workflow_runs as candidate
  where candidate.tenant_id = :tenant_id::uuid
    and candidate.workflow_id = shares.workflow_id
    and candidate.version = shares.version
    and candidate.priority = shares.priority
    and candidate.rank >= shares.floor
    and candidate.ready
  order by candidate.rank
  limit shares.runs
  for no key update of candidate skip locked
) as run
order by run.rank, run.run_id

-- name: standing
-- Whether runs of this tenant may be started.
select tenant.status
from tenantry.tenants as tenant
where tenant.tenant_id = :tenant_id::uuid
