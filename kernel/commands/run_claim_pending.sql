-- name: claim
-- Lock the next ready runs of the served (workflow, version) pairs, leaving out what others hold; '' is an unpinned run.
-- Decides from the rows it locks alone: status and readiness are looked at again once the lock is had.
select
  run.run_id, run.workflow_id, run.version, run.status, run.priority, run.event_sequence, run.redrive_count,
  run.traceparent, run.tracestate, run.updated_at, tenantry.now() as now,
  run.input::text as input, run.config::text as config, run.available_at
from json_to_recordset(:served::text::json) as served (workflow_id text, version text)
cross join lateral (
  select candidate.*
  from tenantry.workflow_runs as candidate
  where candidate.tenant_id = :tenant_id::uuid
    and candidate.workflow_id = served.workflow_id
    and candidate.version = served.version
    and candidate.ready
  order by candidate.rank
  limit :limit::int
  for no key update of candidate skip locked
) as run
order by run.rank, run.run_id
limit :limit::int

-- name: standing
-- Whether runs of this tenant may be started.
select tenant.status
from tenantry.tenants as tenant
where tenant.tenant_id = :tenant_id::uuid
