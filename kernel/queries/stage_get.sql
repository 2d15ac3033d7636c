-- name: outputs
-- What the completed stages of one run made, as the text that is stored, up to a group.
select stage.stage_id, stage.output::text as output
from tenantry.workflow_stages as stage
where stage.tenant_id = :tenant_id::uuid and stage.run_id = :run_id::uuid
  and stage.group_number <= :up_to_group::int and stage.output is not null
order by stage.number
