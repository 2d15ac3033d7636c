-- name: latest
-- How far the bodies of one run said they were, each in its present attempt; nothing of a stage that said nothing since it
-- began, is to begin again, or is done. Each is looked for from the end of the history back to where its attempt began.
select stage.stage_id, stage.attempt, latest.payload::text as payload, latest.occurred_at
from tenantry.workflow_stages as stage
cross join lateral (
  select event.type, event.payload, event.occurred_at
  from tenantry.outbox_events as event
  where event.tenant_id = :tenant_id::uuid and event.run_id = :run_id::uuid and event.stage_id = stage.stage_id
    and event.type in ('stage:started', 'stage:progress')
  order by event.sequence desc
  limit 1
) as latest
where stage.tenant_id = :tenant_id::uuid and stage.run_id = :run_id::uuid
  and stage.status in ('RUNNING', 'SUSPENDED', 'FAILED', 'CANCELLED') and latest.type = 'stage:progress'
order by stage.number
