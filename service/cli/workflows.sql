-- name: active_versions
-- role: tenantry_scheduler
-- Which versions have runs that are not over, and of how many tenants; read from the index of open runs.
select run.workflow_id, run.version, count(*) as runs, count(distinct run.tenant_id) as tenants
from tenantry.workflow_runs as run
where run.status in ('PENDING', 'RUNNING')
group by run.workflow_id, run.version
order by run.workflow_id, run.version
