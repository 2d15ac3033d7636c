-- name: insert_logs
-- Keep log lines of leased jobs. They change nothing about a run, so they need no lock and no fence.
insert into tenantry.workflow_logs (tenant_id, run_id, stage_id, attempt, level, message, fields, created_at)
select
  :tenant_id::uuid, item.run_id, item.stage_id, item.attempt, item.level, item.message, item.fields::json,
  item.created_at
from json_to_recordset(:items::text::json) as item (
  run_id uuid, stage_id text, attempt int, level text, message text, fields text, created_at timestamptz
)
