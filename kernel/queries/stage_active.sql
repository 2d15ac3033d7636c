-- name: active
-- What the stages of some runs are at that are not over, by their key, in definition order: up to :limit of each run.
select active.run_id, active.stage_id, active.status, active.attempt, active.waiting_for::text as waiting_for
from unnest(:run_ids::uuid[]) as wanted (run_id)
cross join lateral (
  select stage.run_id, stage.stage_id, stage.number, stage.status, stage.attempt, stage.waiting_for
  from tenantry.workflow_stages as stage
  where stage.tenant_id = :tenant_id::uuid and stage.run_id = wanted.run_id
    and stage.status in ('PENDING', 'RUNNING', 'SUSPENDED')
  order by stage.number
  limit :limit::int
) as active
order by active.run_id, active.number
