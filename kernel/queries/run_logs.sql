-- name: page
-- What the bodies of one run logged, by its key, oldest first.
select line.log_id, line.stage_id, line.attempt, line.level, line.message, line.fields::text as fields, line.created_at
from tenantry.workflow_logs as line
where line.tenant_id = :tenant_id::uuid and line.run_id = :run_id::uuid and line.log_id > :after::uuid
order by line.log_id
limit :limit::int
