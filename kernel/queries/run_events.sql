-- name: page
-- The history of one run by its key, oldest first; of some types only, where any are given.
select event.sequence, event.type, event.stage_id, event.payload::text as data, event.occurred_at
from tenantry.outbox_events as event
where event.tenant_id = :tenant_id::uuid and event.run_id = :run_id::uuid and event.sequence > :after::int
  and (:types::text[] is null or event.type = any(:types::text[]))
order by event.sequence
limit :limit::int
