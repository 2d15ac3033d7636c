-- name: expire
-- Delete keys that have had their time and whose run is over or gone; one that somebody holds stays for the next round.
with expired as (
  select kept.command, kept.key
  from tenantry.idempotency_keys as kept
  left join tenantry.workflow_runs as run on run.tenant_id = :tenant_id::uuid and run.run_id = kept.run_id
  where kept.tenant_id = :tenant_id::uuid
    and kept.expires_at <= tenantry.now()
    and (run.run_id is null or run.status in ('COMPLETED', 'FAILED', 'CANCELLED'))
  order by kept.expires_at
  limit :limit::int
  for update of kept skip locked
)
delete from tenantry.idempotency_keys as kept
using expired
where kept.tenant_id = :tenant_id::uuid and kept.command = expired.command and kept.key = expired.key
