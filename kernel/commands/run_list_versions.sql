-- name: counts
-- Runs by workflow, version and status, and when the oldest of each was created. Reads every run of the tenant's, or of one
-- workflow's: for operators and deployments, not for hot paths.
select run.workflow_id, run.version, run.status, count(*) as runs, min(run.created_at) as oldest_created_at
from tenantry.workflow_runs as run
where run.tenant_id = :tenant_id::uuid and (:workflow_id::text is null or run.workflow_id = :workflow_id::text)
group by run.workflow_id, run.version, run.status
order by run.workflow_id, run.version, run.status
