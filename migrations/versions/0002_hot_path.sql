-- The hot path's statements as functions: behind a pooler that cannot prepare, planning the same statements anew costs a
-- batch of one as much as running them; PL/pgSQL keeps their plans on the server's connection (measured in tests/bench).
-- SECURITY INVOKER, so the caller's policies govern them; volatile, so each statement inside has a snapshot of its own, as
-- "lock first, decide in a later statement" needs. A kept plan may have been made on an empty table: so no table is scanned
-- whole, and each is entered by the runs of the batch (= any), which bounds what is read whichever way a plan joins
-- (without it, a plan that starts from the table and not from the batch was seen to read a tenant's every row). A change of shape is a new function (_v2), never an edit of one in use.

-- Lock the runs of the items in key order, leaving out what others hold unless wait; then tell, for each item whose run is
-- locked, how its run stands, what its job is and whether its job's row could be locked too (a heartbeat may hold one).
create function tenantry.lock_leases_v1(tenant uuid, items json, wait boolean)
returns table (
  run_id uuid, stage_id text, workflow_id text, version text, status text, priority smallint, event_sequence int,
  redrive_count int, traceparent text, tracestate text, updated_at timestamptz, now timestamptz,
  job_status text, replay boolean, job_attempt int, max_attempts smallint, started_at timestamptz, had boolean
)
language plpgsql volatile security invoker
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  asked uuid[] := array(
    select distinct item.run_id from json_to_recordset(items) as item (run_id uuid) order by item.run_id
  );
  locked uuid[];
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
  return query
    select
      item.run_id, item.stage_id, run.workflow_id, run.version, run.status, run.priority, run.event_sequence,
      run.redrive_count, run.traceparent, run.tracestate, run.updated_at, tenantry.now(),
      job.status, job.replay, job.attempt, job.max_attempts, job.started_at, lockable.had is not null
    from json_to_recordset(items) as item (run_id uuid, stage_id text)
    join tenantry.workflow_runs as run
      on run.tenant_id = tenant and run.run_id = item.run_id and run.run_id = any(locked)
    left join tenantry.job_queue as job
      on job.tenant_id = tenant and job.run_id = any(locked)
      and job.run_id = item.run_id and job.stage_id = item.stage_id
    left join lateral (
      select true as had
      from tenantry.job_queue as mine
      where mine.tenant_id = tenant and mine.run_id = item.run_id and mine.stage_id = item.stage_id
      for no key update of mine skip locked
    ) as lockable on true;
end
$$;

-- Write what a transaction made of its locked runs. Each argument is a JSON array of rows, or null for none. Payloads travel
-- as text inside the rows: a JSON null is a value, and text comes back as it went in. Nothing checks a state again: the
-- runs' locks are held. `run_ids` names the runs of the batch. Rows come in key order, the lock order of all writers.
create function tenantry.write_changes_v1(
  tenant uuid, run_ids uuid[], definitions json, run_updates json, stage_inserts json, stage_updates json, job_deletes json,
  job_inserts json, job_updates json, events json, annotations json
)
returns void
language plpgsql volatile security invoker
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
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
      tenant_id, run_id, stage_id, group_number, number, status, attempt, announced_attempt, max_attempts, created_at,
      started_at, updated_at
    )
    select
      tenant, item.run_id, item.stage_id, item.group_number, item.number, item.status, item.attempt, item.attempt,
      item.max_attempts, item.now, item.started_at, item.now
    from json_to_recordset(stage_inserts) as item (
      run_id uuid, stage_id text, group_number smallint, number smallint, status text, attempt int,
      max_attempts smallint, started_at timestamptz, now timestamptz
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
      next_poll_at = null,
      settled_attempt = coalesce(item.settled_attempt, stage.settled_attempt),
      settled_started_at = coalesce(item.settled_started_at, stage.settled_started_at),
      started_at = coalesce(stage.started_at, item.started_at),
      completed_at = item.completed_at,
      updated_at = item.now,
      version = stage.version + 1
    from json_to_recordset(stage_updates) as item (
      run_id uuid, stage_id text, status text, attempt int, announced_attempt int, output text, error_message text,
      settled_attempt int, settled_started_at timestamptz, started_at timestamptz, completed_at timestamptz,
      now timestamptz
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
      worker_id, locked_at, started_at, traceparent
    )
    select
      tenant, item.run_id, item.stage_id, item.workflow_id, item.version, item.status, item.ready, item.rank,
      item.available_at, item.attempt, item.max_attempts, item.worker_id, item.started_at, item.started_at,
      item.traceparent
    from json_to_recordset(job_inserts) as item (
      run_id uuid, stage_id text, workflow_id text, version text, status text, ready boolean, rank timestamptz,
      available_at timestamptz, attempt int, max_attempts smallint, worker_id text, started_at timestamptz,
      traceparent text
    );
  end if;
  if job_updates is not null then
    -- last_error stays through a lease and until something newer is known.
    update tenantry.job_queue as job
    set
      status = item.status,
      ready = item.ready,
      rank = coalesce(item.rank, job.rank),
      available_at = coalesce(item.available_at, job.available_at),
      attempt = item.attempt,
      worker_id = item.worker_id,
      locked_at = item.started_at,
      started_at = item.started_at,
      last_error = coalesce(item.last_error, job.last_error)
    from json_to_recordset(job_updates) as item (
      run_id uuid, stage_id text, status text, ready boolean, rank timestamptz, available_at timestamptz, attempt int,
      worker_id text, started_at timestamptz, last_error text
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

-- Create runs, PENDING, with their tags and the first event of their histories. `at` is the database's clock as the caller
-- read it in this transaction: what it answers is what is written.
create function tenantry.create_runs_v1(tenant uuid, at timestamptz, runs json, tags json)
returns void
language plpgsql volatile security invoker
set search_path = pg_catalog, pg_temp
as $$
begin
  insert into tenantry.workflow_runs (
    tenant_id, run_id, workflow_id, version, priority, rank, ready, available_at, input, config, event_sequence,
    created_at, updated_at, traceparent, tracestate
  )
  select
    tenant, item.run_id, item.workflow_id, item.version, item.priority,
    due.at - item.priority * interval '60 seconds', due.at <= create_runs_v1.at, due.at,
    item.input::json, item.config::json, 1, create_runs_v1.at, create_runs_v1.at, item.traceparent, item.tracestate
  from json_to_recordset(runs) as item (
    run_id uuid, workflow_id text, version text, priority smallint, run_at timestamptz, input text, config text,
    traceparent text, tracestate text
  )
  cross join lateral (select coalesce(item.run_at, create_runs_v1.at) as at) as due;
  if tags is not null then
    insert into tenantry.workflow_run_tags (tenant_id, tag, run_id)
    select tenant, item.tag, item.run_id
    from json_to_recordset(tags) as item (tag text, run_id uuid);
  end if;
  insert into tenantry.outbox_events (tenant_id, run_id, sequence, type, payload, occurred_at)
  select
    tenant, item.run_id, 1, 'workflow:created', json_build_object('workflow', item.workflow_id), create_runs_v1.at
  from json_to_recordset(runs) as item (run_id uuid, workflow_id text);
end
$$;

-- Who has work? The tenants with ready jobs or runs of the served pairs (a loose scan: one index probe a tenant, a page of
-- tenants a pair from the cursor on), and those whose waiting rows came due. Called as tenantry_scheduler, which sees which
-- tenant has what due and nothing else. Its cost grows with what is due and served; not with tenants, sleeping jobs,
-- unserved versions or queue depth.
create function tenantry.due_tenants_v1(served json, after uuid, page int)
returns table (tenant_id uuid, is_ready boolean, is_waiting boolean, weight int, status text)
language plpgsql volatile security invoker
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_column
begin
  return query
    with pairs as (
      select pair.workflow_id, pair.version
      from json_to_recordset(served) as pair (workflow_id text, version text)
    ),
    due as (
      select found.tenant_id, true as is_ready
      from pairs
      cross join lateral (
        with recursive walk (tenant_id) as (
          (
            select job.tenant_id
            from tenantry.job_queue as job
            where job.workflow_id = pairs.workflow_id and job.version = pairs.version and job.ready
              and job.tenant_id >= after
            order by job.tenant_id
            limit 1
          )
          union all
          select (
            select job.tenant_id
            from tenantry.job_queue as job
            where job.workflow_id = pairs.workflow_id and job.version = pairs.version and job.ready
              and job.tenant_id > walk.tenant_id
            order by job.tenant_id
            limit 1
          )
          from walk
          where walk.tenant_id is not null
        )
        select walk.tenant_id from walk where walk.tenant_id is not null limit page
      ) as found
      union all
      select found.tenant_id, true
      from (select pairs.workflow_id, pairs.version from pairs union select pairs.workflow_id, '' from pairs) as wanted
      cross join lateral (
        with recursive walk (tenant_id) as (
          (
            select run.tenant_id
            from tenantry.workflow_runs as run
            where run.workflow_id = wanted.workflow_id and run.version = wanted.version and run.ready
              and run.tenant_id >= after
            order by run.tenant_id
            limit 1
          )
          union all
          select (
            select run.tenant_id
            from tenantry.workflow_runs as run
            where run.workflow_id = wanted.workflow_id and run.version = wanted.version and run.ready
              and run.tenant_id > walk.tenant_id
            order by run.tenant_id
            limit 1
          )
          from walk
          where walk.tenant_id is not null
        )
        select walk.tenant_id from walk where walk.tenant_id is not null limit page
      ) as found
      union all
      select waiting.tenant_id, false
      from (
        select job.tenant_id
        from tenantry.job_queue as job
        where job.status = 'PENDING' and not job.ready and job.available_at <= tenantry.now()
        order by job.available_at
        limit 1000
      ) as waiting
      union all
      select waiting.tenant_id, false
      from (
        select run.tenant_id
        from tenantry.workflow_runs as run
        where run.status = 'PENDING' and not run.ready and run.available_at <= tenantry.now()
        order by run.available_at
        limit 1000
      ) as waiting
    )
    select
      due.tenant_id,
      bool_or(due.is_ready),
      bool_or(not due.is_ready),
      coalesce(min(tenant.weight), 1),
      coalesce(min(tenant.status), 'active')
    from due
    left join tenantry.tenants as tenant on tenant.tenant_id = due.tenant_id
    group by due.tenant_id
    order by due.tenant_id;
end
$$;
