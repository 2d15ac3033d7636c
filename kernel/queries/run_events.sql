-- name: page
-- The history of one run by its key, oldest first; of some types, and of one stage, where they are named.
select event.sequence, event.type, event.stage_id, event.payload::text as data, event.occurred_at
from tenantry.outbox_events as event
where event.tenant_id = :tenant_id::uuid and event.run_id = :run_id::uuid and event.sequence > :after::int
  and (:types::text[] is null or event.type = any(:types::text[]))
  and (:stage_id::text is null or event.stage_id = :stage_id::text)
order by event.sequence
limit :limit::int

-- name: last
-- The last events of the same, newest first; those of the run as a whole are of every stage.
select event.sequence, event.type, event.stage_id, event.payload::text as data, event.occurred_at
from tenantry.outbox_events as event
where event.tenant_id = :tenant_id::uuid and event.run_id = :run_id::uuid
  and (:types::text[] is null or event.type = any(:types::text[]))
  and (:stage_id::text is null or event.stage_id = :stage_id::text or event.stage_id is null)
order by event.sequence desc
limit :limit::int
