-- name: step
-- The step as it is, with its run's lock held; late is what comes after the deadline.
select step.kind, step.status, coalesce(step.deadline_at <= tenantry.now(), false) as is_late
from tenantry.workflow_steps as step
where step.tenant_id = :tenant_id::uuid
  and step.run_id = :run_id::uuid and step.stage_id = :stage_id::text and step.step_id = :step_id::text

-- name: complete
-- Complete the waiting step, or keep the signal for one that is still to wait; a completed one stays as it is.
insert into tenantry.workflow_steps as step (
  tenant_id, run_id, stage_id, step_id, kind, status, result, result_digest, completed_at
)
values (
  :tenant_id::uuid, :run_id::uuid, :stage_id::text, :step_id::text, 'signal', 'completed', :payload::text::json,
  :digest::bytea, tenantry.now()
)
on conflict (tenant_id, run_id, stage_id, step_id) do update
set
  status = 'completed', result = excluded.result, result_digest = excluded.result_digest, completed_at = excluded.completed_at,
  updated_at = tenantry.now()
where step.status = 'pending' and step.kind = 'signal'

-- name: snapshot_stages
-- The stage ids of a stored definition, for a build that does not serve it.
select array(select stage ->> 'id' from json_array_elements(definition.snapshot -> 'stages') as stage) as stage_ids
from tenantry.workflow_definitions as definition
where definition.tenant_id = :tenant_id::uuid
  and definition.workflow_id = :workflow_id::text and definition.version = :version::text
