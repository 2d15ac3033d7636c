-- A step's row is changed once when all goes well, from running to completed: with room for that beside it, it stays where its
-- indexes say. Pages that are there fill up as before.
alter table tenantry.workflow_steps set (fillfactor = 50);

-- As step_ledger_v1 of 0017, which the release before asks, but: outcomes are recorded by one statement, runs are looked up once
-- a batch and not once an op, and what ended as it was to is not told of: an outcome that was recorded while its run goes on, the
-- claim of a step that nobody had before.
create function tenantry.step_ledger_v2(tenant uuid, ops json, wait boolean)
returns table (
  n int, verdict text, run_status text, kind text, status text, attempt int, failures int, stage_attempt int,
  seq int, is_reclaim boolean, lease_expires_at timestamptz, due_at timestamptz, deadline_at timestamptz,
  external_key text, result text, error text, error_type text, now timestamptz
)
language plpgsql volatile security invoker
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
  items tenantry.step_op[] := array(
    select item from json_populate_recordset(null::tenantry.step_op, ops) as item
  );
  asked uuid[] := array(select distinct op.run_id from unnest(items) as op order by op.run_id);
  locked uuid[];
  going uuid[];
  leased int[];
  -- The ops that ended as they were to: of these nothing more is told.
  expected int[] := array[]::int[];
  op record;
  new_rows int;
  inserted int;
begin
  if wait then
    locked := array(
      select run.run_id
      from tenantry.workflow_runs as run
      where run.tenant_id = tenant and run.run_id = any(asked)
      order by run.run_id
      for no key update of run
    );
  else
    locked := array(
      select run.run_id
      from tenantry.workflow_runs as run
      where run.tenant_id = tenant and run.run_id = any(asked)
      order by run.run_id
      for no key update of run skip locked
    );
  end if;

  going := array(
    select run.run_id
    from tenantry.workflow_runs as run
    where run.tenant_id = tenant and run.run_id = any(locked) and run.status = 'RUNNING'
  );

  -- Effects that have happened are recorded whoever has the stage by now. Each row is found by its key and changed by its place,
  -- which nobody else changes while its run is locked: one statement for all of them, whatever the plan is made from.
  for op in
    update tenantry.workflow_steps as step
    set
      status = case when op.goes_on or op.status = 'running' then op.status else 'failed' end,
      result = case when op.goes_on and op.status = 'completed' then op.result::json end,
      error = case
        when op.status = 'running' then step.error
        when op.goes_on then op.error
        else 'StageAbortedError: the stage was aborted: cancelled'
      end,
      error_type = case
        when op.status = 'running' then step.error_type
        when op.goes_on then op.error_type
        else 'kernel.errors.StageAbortedError'
      end,
      failures = coalesce(op.failures, step.failures),
      lapses = case when op.status = 'running' then step.lapses else coalesce(op.lapses, 0) end,
      due_at = case when op.status = 'pending' then tenantry.now() + op.delay_s * interval '1 second' end,
      lease_expires_at = case when op.status = 'running' then tenantry.now() + op.lease_s * interval '1 second' end,
      completed_at = case
        when op.status <> 'running' and (op.status <> 'pending' or not op.goes_on) then tenantry.now()
      end,
      updated_at = tenantry.now()
    from (
      select
        item.n, item.attempt, item.claim_id, item.status, item.result, item.error, item.error_type, item.failures, item.lapses,
        item.delay_s, item.lease_s, item.run_id = any(going) as goes_on, kept.place
      from unnest(items) as item
      cross join lateral (
        select kept.ctid as place
        from tenantry.workflow_steps as kept
        where kept.tenant_id = tenant and kept.run_id = item.run_id and kept.stage_id = item.stage_id
          and kept.step_id = item.step_id
        offset 0
      ) as kept
      where item.op = 'outcome' and item.run_id = any(locked)
      offset 0
    ) as op
    where step.ctid = op.place and step.tenant_id = tenant and step.status = 'running'
      and step.attempt is not distinct from op.attempt and step.claim_id is not distinct from op.claim_id
    returning op.n, op.goes_on
  loop
    if op.goes_on then
      expected := expected || op.n;
    end if;
  end loop;

  -- Which ops come from the worker that has the stage: the fence changes under the run's lock only.
  leased := array(
    select item.n
    from unnest(items) as item
    cross join lateral (
      select job.status, job.attempt, job.started_at
      from tenantry.job_queue as job
      where job.tenant_id = tenant and job.run_id = item.run_id and job.stage_id = item.stage_id
      offset 0
    ) as job
    where item.op <> 'outcome' and item.run_id = any(going)
      and job.status = 'RUNNING' and job.attempt = item.job_attempt and job.started_at = item.job_started_at
  );

  for op in
    select
      item.op, item.run_id, item.stage_id, item.step_id, item.kind, item.status, item.result, item.error, item.error_type,
      item.failures, item.delay_s
    from unnest(items) as item
    where item.op in ('poll', 'resolve') and item.n = any(leased)
  loop
    update tenantry.workflow_steps as step
    set
      status = coalesce(op.status, step.status),
      result = case when op.status = 'completed' then op.result::json end,
      error = op.error,
      error_type = op.error_type,
      failures = coalesce(op.failures, step.failures),
      due_at = case when op.op = 'poll' then tenantry.now() + op.delay_s * interval '1 second' else step.due_at end,
      completed_at = case when op.op = 'resolve' then tenantry.now() end,
      updated_at = tenantry.now()
    where step.tenant_id = tenant and step.run_id = op.run_id and step.stage_id = op.stage_id and step.step_id = op.step_id
      and step.kind = op.kind and step.status = 'pending';
  end loop;

  if cardinality(leased) > 0 then
    insert into tenantry.workflow_steps (
      tenant_id, run_id, stage_id, step_id, seq, kind, status, attempt, stage_attempt, claim_id, lease_expires_at, due_at,
      deadline_at, external_key, wait_state, created_at, updated_at
    )
    select
      tenant, op.run_id, op.stage_id, op.step_id, op.seq, op.kind, case op.op when 'claim' then 'running' else 'pending' end,
      case op.op when 'claim' then 1 else 0 end, op.stage_attempt, op.claim_id,
      tenantry.now() + op.lease_s * interval '1 second', tenantry.now() + op.delay_s * interval '1 second',
      tenantry.now() + op.timeout_s * interval '1 second', op.external_key, op.wait_state, tenantry.now(),
      tenantry.now()
    from unnest(items) as op
    where op.op in ('claim', 'open') and op.n = any(leased)
    order by op.run_id, op.stage_id, op.step_id
    on conflict (tenant_id, run_id, stage_id, step_id) do nothing;
    get diagnostics inserted = row_count;
    new_rows := (
      select count(*)
      from unnest(items) as op
      where op.op in ('claim', 'open') and op.n = any(leased)
    );
  end if;

  -- A row that was there already is taken over when its try is due, its lease has run out, or it failed in an earlier
  -- attempt of the stage; whatever else it is, the answer says. Most steps are new, so this is asked for rarely.
  if inserted = new_rows then
    expected := expected || array(
      select op.n from unnest(items) as op where op.op = 'claim' and op.n = any(leased)
    );
  elsif inserted < new_rows then
    for op in
      select item.run_id, item.stage_id, item.step_id, item.stage_attempt, item.claim_id, item.lease_s, item.on_reclaim
      from unnest(items) as item
      where item.op = 'claim' and item.n = any(leased)
    loop
      update tenantry.workflow_steps as step
      set
        status = case when step.status = 'running' and op.on_reclaim = 'fail' then 'failed' else 'running' end,
        attempt = step.attempt + case when step.status = 'running' and op.on_reclaim = 'fail' then 0 else 1 end,
        -- A claim that was given back before its function began leaves what the one before it was told, and no error.
        -- So does the last one of those whose lease had always run out by then, which failed the step.
        is_reclaim = step.status = 'running'
          or step.status = 'pending' and step.is_reclaim and (step.claim_id is null or step.error is null)
          or step.is_reclaim and step.error_type is not distinct from 'kernel.step_errors.StepLeaseTooShortError',
        failures = case when step.status = 'failed' then 0 else step.failures end,
        lapses = case when step.status = 'pending' then step.lapses else 0 end,
        stage_attempt = op.stage_attempt,
        claim_id = op.claim_id,
        lease_expires_at = case
          when step.status = 'running' and op.on_reclaim = 'fail' then step.lease_expires_at
          else tenantry.now() + op.lease_s * interval '1 second'
        end,
        due_at = null,
        error = case
          when step.status = 'running' and op.on_reclaim = 'fail'
            then format(
              'StepNotReplaySafeError: step %s was under way when its lease expired at %s, external key %s: it may have'
                ' had its effect and must not run twice',
              step.step_id, to_char(step.lease_expires_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'), step.external_key
            )
        end,
        error_type = case
          when step.status = 'running' and op.on_reclaim = 'fail' then 'kernel.step_errors.StepNotReplaySafeError'
        end,
        completed_at = case when step.status = 'running' and op.on_reclaim = 'fail' then tenantry.now() end,
        updated_at = tenantry.now()
      where step.tenant_id = tenant and step.run_id = op.run_id and step.stage_id = op.stage_id
        and step.step_id = op.step_id and step.kind = 'run' and step.claim_id is distinct from op.claim_id
        and (
          step.status = 'pending' and step.due_at <= tenantry.now()
          or step.status = 'running' and step.lease_expires_at <= tenantry.now()
          or step.status = 'failed' and step.stage_attempt < op.stage_attempt
          and step.error_type is distinct from 'kernel.step_errors.StepNotReplaySafeError'
        );
    end loop;
  end if;

  return query
    select
      op.n,
      case
        when run.status is null then 'gone'
        when not op.run_id = any(locked) then 'busy'
        when op.op = 'outcome' then
          case
            when step.attempt = op.attempt and step.claim_id = op.claim_id
              and (step.status <> 'running' or op.status = 'running')
              then 'done'
            else 'conflict'
          end
        when not op.n = any(leased) then 'lost'
        when op.op = 'claim' and step.claim_id = op.claim_id and step.status = 'running' then 'mine'
        else 'kept'
      end,
      run.status, step.kind, step.status, step.attempt, step.failures, step.stage_attempt, step.seq,
      step.is_reclaim, step.lease_expires_at, step.due_at, step.deadline_at, step.external_key,
      case when op.op in ('claim', 'open', 'resolve') then step.result::text end,
      step.error, step.error_type, tenantry.now()
    from unnest(items) as op
    left join lateral (
      select run.status
      from tenantry.workflow_runs as run
      where run.tenant_id = tenant and run.run_id = op.run_id
      offset 0
    ) as run on true
    left join lateral (
      select kept.*
      from tenantry.workflow_steps as kept
      where kept.tenant_id = tenant and kept.run_id = op.run_id and kept.stage_id = op.stage_id
        and kept.step_id = op.step_id
      offset 0
    ) as step on true
    where op.n <> all(expected)
    order by op.n;
end
$$;

-- As in 0015, and: it asks step_ledger_v2.
create or replace function tenantry.settle_expected_v1(
  tenant uuid, expected json, at timestamptz, ops json, run_ids uuid[], run_updates json, stage_inserts json,
  stage_updates json, job_deletes json, job_inserts json, job_updates json, events json, annotations json
)
returns table (is_written boolean, now timestamptz)
language plpgsql volatile security invoker
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
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
  cross join lateral (
    select run.status, run.version, run.event_sequence
    from tenantry.workflow_runs as run
    where run.tenant_id = tenant and run.run_id = item.run_id
    offset 0
  ) as run
  cross join lateral (
    select mine.status, mine.attempt, mine.started_at
    from tenantry.job_queue as mine
    where mine.tenant_id = tenant and mine.run_id = item.run_id and mine.stage_id = item.stage_id
    offset 0
    for no key update of mine skip locked
  ) as job
  where run.status = 'RUNNING' and run.version = item.version and run.event_sequence = item.event_sequence
    and job.status = 'RUNNING' and job.attempt = item.attempt and job.started_at = item.started_at;
  get diagnostics counted = row_count;
  if counted < cardinality(asked) then
    return next;
    return;
  end if;

  if ops is not null then
    -- An outcome that is refused here is told of by job.settle, which finds those that were recorded as its own.
    perform from tenantry.step_ledger_v2(tenant, ops, false) as answer where answer.verdict <> 'done';
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
