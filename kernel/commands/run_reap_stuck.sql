-- name: page
-- The next page of RUNNING runs in key order, and which of them look stuck: nothing about them has moved within the horizon,
-- and nothing can move them: no queued job, no lease (a lapsed one is lease.reap_stale's), no wait with a future. A guess:
-- the command locks the suspects and looks again.
select
  run.run_id,
  run.updated_at <= tenantry.now() - :horizon::interval
    and not exists (
      select from tenantry.job_queue as job
      where job.tenant_id = :tenant_id::uuid and job.run_id = run.run_id and job.status in ('PENDING', 'RUNNING')
    )
    and not exists (
      select from tenantry.workflow_stages as stage
      where stage.tenant_id = :tenant_id::uuid and stage.run_id = run.run_id
        and (
          stage.updated_at > tenantry.now() - :horizon::interval
          or stage.status = 'SUSPENDED' and (stage.next_poll_at > tenantry.now() or stage.deadline > tenantry.now())
        )
    ) as is_suspect
from tenantry.workflow_runs as run
where run.tenant_id = :tenant_id::uuid
  and run.status = 'RUNNING'
  and (:after::uuid is null or run.run_id > :after::uuid)
order by run.run_id
limit 1000
