-- A run that was made where nothing traced (by SQL, or by an application without an SDK) is given the context of its creation
-- with the update that pins and starts it: at no further statement. What a run has stays.

-- As in 0010, but for the trace context of the runs that are updated; the release before this revision gives none.
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
      updated_at = item.now,
      traceparent = coalesce(run.traceparent, item.traceparent),
      tracestate = case when run.traceparent is null then item.tracestate else run.tracestate end
    from json_to_recordset(run_updates) as item (
      run_id uuid, status text, version text, event_sequence int, started_at timestamptz, completed_at timestamptz,
      output text, error text, now timestamptz, traceparent text, tracestate text
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
