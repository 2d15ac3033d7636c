-- Settle leases that stand as their worker last saw them; see kernel/commands/job_settle_expected.py. Locks the runs first,
-- leaving out what others hold, and compares in a later statement, under the locks: the fence of each job, and the run's
-- event sequence, without which nothing happens to a run but a heartbeat. Only if all is as expected anything is written:
-- the outcomes of steps, then everything else. One that is not writes nothing, so that nobody's settle depends on it.
-- `at` is the time of what is written: the database's own, which the worker read a moment ago and moved on by its own
-- clock. What is not within the last second of now() is refused, so no clock but the database's decides about a lease.
create function tenantry.settle_expected_v1(
  tenant uuid, expected json, at timestamptz, ops json, run_ids uuid[], run_updates json, stage_inserts json,
  stage_updates json, job_deletes json, job_inserts json, job_updates json, events json, annotations json
)
returns table (is_written boolean, now timestamptz)
language plpgsql volatile security invoker
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
declare
  asked uuid[] := array(
    select item.run_id from json_to_recordset(expected) as item (run_id uuid) order by item.run_id
  );
  counted int;
begin
  is_written := false;
  now := tenantry.now();
  if settle_expected_v1.at > now or settle_expected_v1.at < now - interval '1 second' then
    return next;
    return;
  end if;

  perform from tenantry.workflow_runs as run
  where run.tenant_id = tenant and run.run_id = any(asked)
  order by run.run_id
  for no key update of run skip locked;
  get diagnostics counted = row_count;
  if counted < cardinality(asked) then
    return next;
    return;
  end if;

  perform from json_to_recordset(expected) as item (
    run_id uuid, stage_id text, version text, event_sequence int, attempt int, started_at timestamptz
  )
  join tenantry.workflow_runs as run
    on run.tenant_id = tenant and run.run_id = any(asked) and run.run_id = item.run_id
    and run.status = 'RUNNING' and run.version = item.version and run.event_sequence = item.event_sequence
  cross join lateral (
    select
    from tenantry.job_queue as mine
    where mine.tenant_id = tenant and mine.run_id = item.run_id and mine.stage_id = item.stage_id
      and mine.status = 'RUNNING' and mine.attempt = item.attempt and mine.started_at = item.started_at
    for no key update of mine skip locked
  ) as job;
  get diagnostics counted = row_count;
  if counted < cardinality(asked) then
    return next;
    return;
  end if;

  if ops is not null then
    -- An outcome that is refused here is told of by job.settle, which finds those that were recorded as its own.
    perform from tenantry.step_ledger_v1(tenant, ops, false) as answer where answer.verdict <> 'done';
    if found then
      return next;
      return;
    end if;
  end if;

  perform tenantry.write_changes_v1(
    tenant, run_ids, null, run_updates, stage_inserts, stage_updates, job_deletes, job_inserts, job_updates, events,
    annotations
  );
  is_written := true;
  return next;
end
$$;
