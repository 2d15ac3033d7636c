-- name: digest
-- Where a run's output is.
select run.output_digest
from tenantry.workflow_runs as run
where run.tenant_id = :tenant_id::uuid and run.run_id = :run_id::uuid
