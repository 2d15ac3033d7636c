-- name: waited
-- The steps that suspending stages wait for, with the runs' locks held: one that has ended meanwhile makes its stage due now.
select
  step.run_id, step.stage_id, step.step_id, step.kind, step.status, step.due_at, step.lease_expires_at, step.deadline_at,
  (step.wait_state ->> 'keepalive_s')::float8 as keepalive_s
from json_to_recordset(:items::text::json) as item (run_id uuid, stage_id text, step_id text)
join tenantry.workflow_steps as step
  on step.tenant_id = :tenant_id::uuid
  and step.run_id = item.run_id and step.stage_id = item.stage_id and step.step_id = item.step_id
