-- name: outputs
-- What the completed stages of one run made, as the text that is stored, or where it is, up to a group.
select stage.run_id, stage.stage_id, stage.output::text as output, stage.output_digest
from tenantry.workflow_stages as stage
where stage.tenant_id = :tenant_id::uuid and stage.run_id = :run_id::uuid
  and stage.group_number <= :up_to_group::int and stage.status = 'COMPLETED'
order by stage.number
