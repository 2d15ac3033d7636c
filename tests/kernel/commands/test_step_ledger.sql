-- name: told_v1
-- What a worker of the release before is told.
select to_jsonb(answer) - array['now', 'lease_expires_at', 'due_at', 'deadline_at'] as answer
from tenantry.step_ledger_v1(:tenant_id::uuid, :ops::text::json, :wait::boolean) as answer

-- name: told_v2
select to_jsonb(answer) - array['now', 'lease_expires_at', 'due_at', 'deadline_at'] as answer
from tenantry.step_ledger_v2(:tenant_id::uuid, :ops::text::json, :wait::boolean) as answer

-- name: steps
-- Every step; of moments only whether there is one.
select
  to_jsonb(step) - array['created_at', 'updated_at', 'lease_expires_at', 'due_at', 'deadline_at', 'completed_at'] as step,
  array[step.lease_expires_at is null, step.due_at is null, step.deadline_at is null, step.completed_at is null] as moments
from tenantry.workflow_steps as step
where step.tenant_id = :tenant_id::uuid
order by step.run_id, step.stage_id, step.step_id
