-- name: lapsed
-- Lock the jobs whose heartbeat or whose absolute time ran out, and their runs, leaving out what others hold: a heartbeat
-- under way holds its job and is looked at again next time. Both bounds are the database's clock against its own marks.
-- A replay whose next poll has passed is taken back early: its worker sets that ahead with every heartbeat.
select
  job.run_id, job.stage_id, job.status as job_status, job.replay, job.attempt as job_attempt, job.max_attempts,
  job.started_at, job.worker_id,
  :absolute_timeout::interval > interval '0'
    and job.started_at <= tenantry.now() - :absolute_timeout::interval as over_cap,
  run.run_id is not null as run_had,
  run.workflow_id, run.version, run.status, run.priority, run.event_sequence, run.redrive_count, run.traceparent,
  run.tracestate, run.updated_at, tenantry.now() as now
from (
  select leased.*
  from tenantry.job_queue as leased
  where leased.tenant_id = :tenant_id::uuid
    and leased.status = 'RUNNING'
    and (
      leased.locked_at <= tenantry.now() - :stale_after::interval
      or leased.replay
      and exists (
        select from tenantry.workflow_stages as stage
        where stage.tenant_id = :tenant_id::uuid and stage.run_id = leased.run_id and stage.stage_id = leased.stage_id
          and stage.status = 'SUSPENDED' and stage.next_poll_at <= tenantry.now()
      )
      or :absolute_timeout::interval > interval '0'
      and leased.started_at <= tenantry.now() - :absolute_timeout::interval
    )
  order by leased.run_id, leased.stage_id
  limit :limit::int
  for no key update of leased skip locked
) as job
left join lateral (
  select held.*
  from tenantry.workflow_runs as held
  where held.tenant_id = :tenant_id::uuid and held.run_id = job.run_id
  for no key update of held skip locked
) as run on true
