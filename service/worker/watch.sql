-- name: not_running
-- Which of these runs are no longer RUNNING: cancelled, failed by a sibling, or gone from under their bodies.
select asked.run_id, run.status
from unnest(:run_ids::uuid[]) as asked (run_id)
left join tenantry.workflow_runs as run on run.tenant_id = :tenant_id::uuid and run.run_id = asked.run_id
where run.status is distinct from 'RUNNING'
