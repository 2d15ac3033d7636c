-- name: standing
-- Whether this tenant's work may be claimed, and how much of it may run at once. No row of its own: active and unlimited. The
-- function's text is in the migrations (0006).
select held.status, held.running_jobs
from tenantry.claim_standing_v1(:tenant_id::uuid) as held

-- name: lock_claim
-- One claim at a time for a tenant with a running cap; not had means that another worker is claiming: next round.
select claim.running_jobs
from tenantry.tenant_limits as claim
where claim.tenant_id = :tenant_id::uuid and claim.kind = 'claim'
for no key update of claim skip locked

-- name: await_claim
-- The same, for one named job: whoever has the lock is claiming, and is waited for.
select claim.running_jobs
from tenantry.tenant_limits as claim
where claim.tenant_id = :tenant_id::uuid and claim.kind = 'claim'
for no key update of claim

-- name: cap
-- The cap as it is, unlocked: for a lease that nobody else will see.
select claim.running_jobs
from tenantry.tenant_limits as claim
where claim.tenant_id = :tenant_id::uuid and claim.kind = 'claim'

-- name: running
-- How many jobs run now; a later statement than the lock, so it sees everything that an earlier claim committed.
select count(*)::int as running
from tenantry.job_queue as job
where job.tenant_id = :tenant_id::uuid and job.status = 'RUNNING'
