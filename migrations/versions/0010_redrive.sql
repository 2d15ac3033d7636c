-- What runs need that were redriven: they go on after their end, under the same id.

-- {stage id: attempts} of stages whose rows a redrive removed: those that are created again count on from there.
alter table tenantry.workflow_runs add column former_attempts json;

-- As in 0004, and: a stage says in which generation it was created. It is the run's redrive_count at that time, part of the
-- external keys of its steps, and stays when a redrive opens the stage again in place.
create or replace function tenantry.write_changes_v1(
  tenant uuid, run_ids uuid[], definitions json, run_updates json, stage_inserts json, stage_updates json, job_deletes json,
  job_inserts json, job_updates json, events json, annotations json
)
returns void
language plpgsql volatile security invoker
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
begin
  if definitions is not null then
    -- Content-addressed: whoever was first wrote the same.
    insert into tenantry.workflow_definitions (tenant_id, workflow_id, version, structure_hash, snapshot)
    select tenant, item.workflow_id, item.version, item.structure_hash, item.snapshot
    from json_to_recordset(definitions) as item (workflow_id text, version text, structure_hash text, snapshot json)
    where not exists (
      select from tenantry.workflow_definitions as kept
      where kept.tenant_id = tenant and kept.workflow_id = item.workflow_id and kept.version = item.version
    )
    on conflict (tenant_id, workflow_id, version) do nothing;
  end if;
  if run_updates is not null then
    -- ready is false for everything but PENDING, and nothing goes back there.
    update tenantry.workflow_runs as run
    set
      status = item.status,
      version = item.version,
      ready = false,
      event_sequence = item.event_sequence,
      started_at = coalesce(run.started_at, item.started_at),
      completed_at = item.completed_at,
      output = item.output::json,
      error = item.error::json,
      updated_at = item.now
    from json_to_recordset(run_updates) as item (
      run_id uuid, status text, version text, event_sequence int, started_at timestamptz, completed_at timestamptz,
      output text, error text, now timestamptz
    )
    where run.tenant_id = tenant and run.run_id = any(run_ids) and run.run_id = item.run_id;
  end if;
  if stage_inserts is not null then
    insert into tenantry.workflow_stages (
      tenant_id, run_id, stage_id, group_number, number, status, attempt, announced_attempt, max_attempts, generation,
      created_at, started_at, updated_at
    )
    select
      tenant, item.run_id, item.stage_id, item.group_number, item.number, item.status, item.attempt, item.attempt,
      item.max_attempts,
      -- The release before this revision gives none.
      coalesce(
        item.generation,
        (
          select run.redrive_count from tenantry.workflow_runs as run
          where run.tenant_id = tenant and run.run_id = item.run_id
        ),
        0
      ),
      item.now, item.started_at, item.now
    from json_to_recordset(stage_inserts) as item (
      run_id uuid, stage_id text, group_number smallint, number smallint, status text, attempt int,
      max_attempts smallint, generation int, started_at timestamptz, now timestamptz
    );
  end if;
  if stage_updates is not null then
    -- What an item leaves out (settled_*, started_at) stays as it was.
    update tenantry.workflow_stages as stage
    set
      status = item.status,
      attempt = item.attempt,
      announced_attempt = greatest(stage.announced_attempt, item.announced_attempt),
      output = item.output::json,
      error_message = item.error_message,
      next_poll_at = item.next_poll_at,
      waiting_for = item.waiting_for,
      settled_attempt = coalesce(item.settled_attempt, stage.settled_attempt),
      settled_started_at = coalesce(item.settled_started_at, stage.settled_started_at),
      started_at = coalesce(stage.started_at, item.started_at),
      completed_at = item.completed_at,
      updated_at = item.now,
      version = stage.version + 1
    from json_to_recordset(stage_updates) as item (
      run_id uuid, stage_id text, status text, attempt int, announced_attempt int, output text, error_message text,
      settled_attempt int, settled_started_at timestamptz, started_at timestamptz, completed_at timestamptz,
      next_poll_at timestamptz, waiting_for json, now timestamptz
    )
    where stage.tenant_id = tenant and stage.run_id = any(run_ids)
      and stage.run_id = item.run_id and stage.stage_id = item.stage_id;
  end if;
  if job_deletes is not null then
    delete from tenantry.job_queue as job
    using json_to_recordset(job_deletes) as item (run_id uuid, stage_id text)
    where job.tenant_id = tenant and job.run_id = any(run_ids)
      and job.run_id = item.run_id and job.stage_id = item.stage_id;
  end if;
  if job_inserts is not null then
    insert into tenantry.job_queue (
      tenant_id, run_id, stage_id, workflow_id, version, status, ready, rank, available_at, attempt, max_attempts,
      worker_id, locked_at, started_at, traceparent, priority
    )
    select
      tenant, item.run_id, item.stage_id, item.workflow_id, item.version, item.status, item.ready, item.rank,
      item.available_at, item.attempt, item.max_attempts, item.worker_id, item.started_at, item.started_at,
      item.traceparent,
      -- The release before this revision gives none.
      coalesce(
        item.priority,
        (select run.priority from tenantry.workflow_runs as run where run.tenant_id = tenant and run.run_id = item.run_id),
        0
      )
    from json_to_recordset(job_inserts) as item (
      run_id uuid, stage_id text, workflow_id text, version text, status text, ready boolean, rank timestamptz,
      available_at timestamptz, attempt int, max_attempts smallint, worker_id text, started_at timestamptz,
      traceparent text, priority smallint
    );
  end if;
  if job_updates is not null then
    -- last_error stays through a lease and until something newer is known.
    update tenantry.job_queue as job
    set
      status = item.status,
      ready = item.ready,
      replay = coalesce(item.replay, job.replay),
      rank = coalesce(item.rank, job.rank),
      available_at = coalesce(item.available_at, job.available_at),
      attempt = item.attempt,
      worker_id = item.worker_id,
      locked_at = item.started_at,
      started_at = item.started_at,
      last_error = coalesce(item.last_error, job.last_error)
    from json_to_recordset(job_updates) as item (
      run_id uuid, stage_id text, status text, ready boolean, rank timestamptz, available_at timestamptz, attempt int,
      replay boolean, worker_id text, started_at timestamptz, last_error text
    )
    where job.tenant_id = tenant and job.run_id = any(run_ids)
      and job.run_id = item.run_id and job.stage_id = item.stage_id;
  end if;
  if events is not null then
    -- The sequence numbers were counted up under the runs' locks.
    insert into tenantry.outbox_events (tenant_id, run_id, sequence, type, stage_id, payload, occurred_at)
    select tenant, item.run_id, item.sequence, item.type, item.stage_id, item.payload, item.now
    from json_to_recordset(events) as item (
      run_id uuid, sequence int, type text, stage_id text, payload json, now timestamptz
    );
  end if;
  if annotations is not null then
    insert into tenantry.workflow_annotations (tenant_id, run_id, stage_id, attempt, key, value, payload, created_at)
    select
      tenant, item.run_id, item.stage_id, item.attempt, item.key, item.value::json, item.payload::json, item.now
    from json_to_recordset(annotations) as item (
      run_id uuid, stage_id text, attempt int, key text, value text, payload text, now timestamptz
    );
  end if;
end
$$;

-- As in 0004, and: a step that a redrive opened again (it has no claim) is told that its effect may have been had, if a claim
-- of it was lost.
create or replace function tenantry.step_ledger_v1(tenant uuid, ops json, wait boolean)
returns table (
  n int, verdict text, run_status text, kind text, status text, attempt int, failures int, stage_attempt int,
  seq int, is_reclaim boolean, lease_expires_at timestamptz, due_at timestamptz, deadline_at timestamptz,
  external_key text, result text, error text, error_type text, now timestamptz
)
language plpgsql volatile security invoker
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
  asked uuid[] := array(
    select distinct op.run_id from json_to_recordset(ops) as op (run_id uuid) order by op.run_id
  );
  locked uuid[];
  leased json;
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

  -- Effects that have happened are recorded whoever has the stage by now.
  update tenantry.workflow_steps as step
  set
    status = case when run.status <> 'RUNNING' and op.status <> 'running' then 'failed' else op.status end,
    result = case when run.status = 'RUNNING' and op.status = 'completed' then op.result::json end,
    error = case
      when op.status = 'running' then step.error
      when run.status <> 'RUNNING' then 'StageAbortedError: the stage was aborted: cancelled'
      else op.error
    end,
    error_type = case
      when op.status = 'running' then step.error_type
      when run.status <> 'RUNNING' then 'kernel.errors.StageAbortedError'
      else op.error_type
    end,
    failures = coalesce(op.failures, step.failures),
    due_at = case when op.status = 'pending' then tenantry.now() + op.delay_s * interval '1 second' end,
    lease_expires_at = case when op.status = 'running' then tenantry.now() + op.lease_s * interval '1 second' end,
    completed_at = case
      when op.status <> 'running' and (op.status <> 'pending' or run.status <> 'RUNNING') then tenantry.now()
    end,
    updated_at = tenantry.now()
  from json_to_recordset(ops) as op (
    op text, run_id uuid, stage_id text, step_id text, attempt int, claim_id uuid, status text, result text, error text,
    error_type text, failures int, delay_s float8, lease_s float8
  )
  join tenantry.workflow_runs as run
    on run.tenant_id = tenant and run.run_id = op.run_id and run.run_id = any(locked)
  where op.op = 'outcome'
    and step.tenant_id = tenant and step.run_id = any(locked)
    and step.run_id = op.run_id and step.stage_id = op.stage_id and step.step_id = op.step_id
    and step.status = 'running' and step.attempt = op.attempt and step.claim_id = op.claim_id;

  -- Which ops come from the worker that has the stage: the fence changes under the run's lock only.
  leased := (
    select coalesce(json_agg(json_build_object('n', op.n)), '[]'::json)
    from json_to_recordset(ops) as op (
      n int, op text, run_id uuid, stage_id text, job_attempt int, job_started_at timestamptz
    )
    join tenantry.workflow_runs as run
      on run.tenant_id = tenant and run.run_id = op.run_id and run.run_id = any(locked) and run.status = 'RUNNING'
    join tenantry.job_queue as job
      on job.tenant_id = tenant and job.run_id = any(locked) and job.run_id = op.run_id and job.stage_id = op.stage_id
    where op.op <> 'outcome'
      and job.status = 'RUNNING' and job.attempt = op.job_attempt and job.started_at = op.job_started_at
  );

  if exists (select from json_to_recordset(ops) as op (op text) where op.op in ('poll', 'resolve')) then
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
    from json_to_recordset(ops) as op (
      n int, op text, run_id uuid, stage_id text, step_id text, kind text, status text, result text, error text,
      error_type text, failures int, delay_s float8
    )
    join json_to_recordset(leased) as mine (n int) on mine.n = op.n
    where op.op in ('poll', 'resolve')
      and step.tenant_id = tenant and step.run_id = any(locked)
      and step.run_id = op.run_id and step.stage_id = op.stage_id and step.step_id = op.step_id
      and step.kind = op.kind and step.status = 'pending';
  end if;

  if json_array_length(leased) > 0 then
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
    from json_to_recordset(ops) as op (
      n int, op text, run_id uuid, stage_id text, step_id text, seq int, kind text, stage_attempt int, claim_id uuid,
      lease_s float8, delay_s float8, timeout_s float8, external_key text,
      wait_state json
    )
    join json_to_recordset(leased) as mine (n int) on mine.n = op.n
    where op.op in ('claim', 'open')
    order by op.run_id, op.stage_id, op.step_id
    on conflict (tenant_id, run_id, stage_id, step_id) do nothing;
    get diagnostics inserted = row_count;
    new_rows := (
      select count(*)
      from json_to_recordset(ops) as op (n int, op text)
      join json_to_recordset(leased) as mine (n int) on mine.n = op.n
      where op.op in ('claim', 'open')
    );
  end if;

  -- A row that was there already is taken over when its try is due, its lease has run out, or it failed in an earlier
  -- attempt of the stage; whatever else it is, the answer says. Most steps are new, so this is asked for rarely.
  if inserted < new_rows then
    update tenantry.workflow_steps as step
    set
      status = case when step.status = 'running' and op.on_reclaim = 'fail' then 'failed' else 'running' end,
      attempt = step.attempt + case when step.status = 'running' and op.on_reclaim = 'fail' then 0 else 1 end,
      is_reclaim = step.status = 'running' or step.claim_id is null and step.is_reclaim,
      failures = case when step.status = 'failed' then 0 else step.failures end,
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
    from json_to_recordset(ops) as op (
      n int, op text, run_id uuid, stage_id text, step_id text, stage_attempt int, claim_id uuid, lease_s float8,
      on_reclaim text
    )
    join json_to_recordset(leased) as mine (n int) on mine.n = op.n
    where op.op = 'claim'
      and step.tenant_id = tenant and step.run_id = any(locked)
      and step.run_id = op.run_id and step.stage_id = op.stage_id and step.step_id = op.step_id
      and step.kind = 'run' and step.claim_id is distinct from op.claim_id
      and (
        step.status = 'pending' and step.due_at <= tenantry.now()
        or step.status = 'running' and step.lease_expires_at <= tenantry.now()
        or step.status = 'failed' and step.stage_attempt < op.stage_attempt
        and step.error_type is distinct from 'kernel.step_errors.StepNotReplaySafeError'
      );
  end if;

  return query
    select
      op.n,
      case
        when run.run_id is null then 'gone'
        when not run.run_id = any(locked) then 'busy'
        when op.op = 'outcome' then
          case
            when step.attempt = op.attempt and step.claim_id = op.claim_id
              and (step.status <> 'running' or op.status = 'running')
              then 'done'
            else 'conflict'
          end
        when mine.n is null then 'lost'
        when op.op = 'claim' and step.claim_id = op.claim_id and step.status = 'running' then 'mine'
        else 'kept'
      end,
      run.status, step.kind, step.status, step.attempt, step.failures, step.stage_attempt, step.seq,
      step.is_reclaim, step.lease_expires_at, step.due_at, step.deadline_at, step.external_key,
      case when op.op in ('claim', 'open', 'resolve') then step.result::text end,
      step.error, step.error_type, tenantry.now()
    from json_to_recordset(ops) as op (
      n int, op text, run_id uuid, stage_id text, step_id text, attempt int, claim_id uuid, status text
    )
    left join json_to_recordset(leased) as mine (n int) on mine.n = op.n
    left join tenantry.workflow_runs as run on run.tenant_id = tenant and run.run_id = op.run_id and run.run_id = any(asked)
    left join tenantry.workflow_steps as step
      on step.tenant_id = tenant and step.run_id = any(asked)
      and step.run_id = op.run_id and step.stage_id = op.stage_id and step.step_id = op.step_id
    order by op.n;
end
$$;
