-- name: page
-- What the bodies of one run logged, by its key, oldest first; of one stage where it is named.
select line.log_id, line.stage_id, line.attempt, line.level, line.message, line.fields::text as fields, line.created_at
from tenantry.workflow_logs as line
where line.tenant_id = :tenant_id::uuid and line.run_id = :run_id::uuid and line.log_id > :after::uuid
  and (:stage_id::text is null or line.stage_id = :stage_id::text)
order by line.log_id
limit :limit::int

-- name: last
-- The last lines of the same, newest first.
select line.log_id, line.stage_id, line.attempt, line.level, line.message, line.fields::text as fields, line.created_at
from tenantry.workflow_logs as line
where line.tenant_id = :tenant_id::uuid and line.run_id = :run_id::uuid
  and (:stage_id::text is null or line.stage_id = :stage_id::text)
order by line.log_id desc
limit :limit::int
