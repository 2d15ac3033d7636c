-- What every request, creation and tick asks first, with plans that stay on the server's connections: behind a pooler that cannot
-- prepare, planning these costs several times what running them does.

-- What run.create has to know before it writes: the tenant's standing and its limits on creation, and what the database makes
-- for the run: its id and its time. A tenant without a row (an embedding product may keep its own list) counts as active and
-- unlimited.
create function tenantry.creation_standing_v1(tenant uuid)
returns table (
  run_id uuid, now timestamptz, tenant_status text, limited boolean, pending_runs int, runs_per_minute int, payload_bytes int
)
language plpgsql volatile security invoker
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
  return query
    select
      tenantry.uuid7(), tenantry.now(), held.status, creation.tenant_id is not null,
      creation.pending_runs, creation.runs_per_minute, creation.payload_bytes
    from (select tenant as tenant_id) as bound
    left join tenantry.tenants as held on held.tenant_id = tenant
    left join tenantry.tenant_limits as creation on creation.tenant_id = tenant and creation.kind = 'create';
end
$$;

-- A key with its tenant's standing, under that tenant's own row-level security. An unknown tenant and an unknown key are the
-- same: no row.
create function tenantry.key_standing_v1(tenant uuid, key uuid)
returns table (secret_hash bytea, scopes text[], is_usable boolean, is_use_unrecorded boolean, tenant_status text)
language plpgsql volatile security invoker
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
  return query
    select
      held.secret_hash,
      held.scopes,
      held.revoked_at is null and (held.expires_at is null or held.expires_at > tenantry.now()),
      held.last_used_at is null or held.last_used_at < tenantry.now() - interval '1 minute',
      owner.status
    from tenantry.api_keys as held
    join tenantry.tenants as owner on owner.tenant_id = tenant
    where held.tenant_id = tenant and held.key_id = key;
end
$$;

-- Whether this tenant's work may be claimed, and how much of it may run at once. No row: active and unlimited.
create function tenantry.claim_standing_v1(tenant uuid)
returns table (status text, running_jobs int)
language plpgsql volatile security invoker
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
  return query
    select coalesce(held.status, 'active'), claim.running_jobs
    from (select tenant as tenant_id) as bound
    left join tenantry.tenants as held on held.tenant_id = tenant
    left join tenantry.tenant_limits as claim on claim.tenant_id = tenant and claim.kind = 'claim';
end
$$;

-- Lock the next ready jobs of the served pairs and their runs in one statement, leaving out what others hold. A job whose
-- run is held elsewhere comes back without one (run_had false) and stays as it is; so does a job whose run is gone, which
-- the caller tells apart by a later look: an inner join would hide it for ever.
-- Each lane (workflow, version, priority) is probed from its floor on, because the dead entries of old claims lie below; the
-- heads, read without locks, only say how many rows of which lane come first, so that no lane is locked for nothing. The
-- floors are materialized: under row-level security an index takes no bound that is computed by functions that may leak.
-- Sorting and sequential scans are off so that a plan made for an empty table is the one for a full table: the index that
-- has the order. Items of served are {workflow_id, version, floors: {priority: rank}}.
create function tenantry.claim_jobs_v1(tenant uuid, served json, most int)
returns table (
  run_id uuid, stage_id text, lane_workflow_id text, lane_version text, lane_priority smallint, job_status text,
  replay boolean, job_attempt int, max_attempts smallint, available_at timestamptz, rank timestamptz, started_at timestamptz,
  run_had boolean, workflow_id text, version text, status text, priority smallint, event_sequence int, redrive_count int,
  traceparent text, tracestate text, updated_at timestamptz, now timestamptz, input text, config text
)
language plpgsql volatile security invoker
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
as $$
#variable_conflict use_column
begin
  return query
    with lanes as materialized (
      select
        served.workflow_id, served.version, level.priority,
        coalesce((served.floors ->> level.priority::text)::timestamptz, '-infinity') as floor
      from json_to_recordset(served) as served (workflow_id text, version text, floors json)
      cross join generate_series(0, 9) as level (priority)
    ),
    heads as (
      select lanes.workflow_id, lanes.version, lanes.priority, lanes.floor
      from lanes
      cross join lateral (
        select ahead.rank
        from tenantry.job_queue as ahead
        where ahead.tenant_id = tenant
          and ahead.workflow_id = lanes.workflow_id
          and ahead.version = lanes.version
          and ahead.priority = lanes.priority
          and ahead.rank >= lanes.floor
          and ahead.ready
        order by ahead.rank
        limit most
      ) as head
      order by head.rank
      limit most
    ),
    shares as (
      select heads.workflow_id, heads.version, heads.priority, heads.floor, count(*) as jobs
      from heads
      group by heads.workflow_id, heads.version, heads.priority, heads.floor
    )
    select
      job.run_id, job.stage_id, job.workflow_id as lane_workflow_id, job.version as lane_version,
      job.priority as lane_priority, job.status as job_status,
      job.replay, job.attempt as job_attempt, job.max_attempts, job.available_at, job.rank, job.started_at,
      run.run_id is not null as run_had,
      run.workflow_id, run.version, run.status, run.priority, run.event_sequence, run.redrive_count, run.traceparent,
      run.tracestate, run.updated_at, tenantry.now() as now,
      run.input::text as input, run.config::text as config
    from (
      select candidate.*
      from shares
      cross join lateral (
        select queued.*
        from tenantry.job_queue as queued
        where queued.tenant_id = tenant
          and queued.workflow_id = shares.workflow_id
          and queued.version = shares.version
          and queued.priority = shares.priority
          and queued.rank >= shares.floor
          and queued.ready
        order by queued.rank
        limit shares.jobs
        for no key update of queued skip locked
      ) as candidate
      order by candidate.rank
    ) as job
    left join lateral (
      select held.*
      from tenantry.workflow_runs as held
      where held.tenant_id = tenant and held.run_id = job.run_id
      for no key update of held skip locked
    ) as run on true;
end
$$;

-- The same for runs that have not started; '' is the version of an unpinned one. Decides from the rows it locks alone: status
-- and readiness are looked at again once the lock is had.
create function tenantry.claim_runs_v1(tenant uuid, served json, most int)
returns table (
  run_id uuid, workflow_id text, version text, status text, priority smallint, event_sequence int, redrive_count int,
  traceparent text, tracestate text, updated_at timestamptz, now timestamptz, input text, config text,
  available_at timestamptz, rank timestamptz, lane_workflow_id text, lane_version text, lane_priority smallint
)
language plpgsql volatile security invoker
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
as $$
#variable_conflict use_column
begin
  return query
    with lanes as materialized (
      select
        served.workflow_id, served.version, level.priority,
        coalesce((served.floors ->> level.priority::text)::timestamptz, '-infinity') as floor
      from json_to_recordset(served) as served (workflow_id text, version text, floors json)
      cross join generate_series(0, 9) as level (priority)
    ),
    heads as (
      select lanes.workflow_id, lanes.version, lanes.priority, lanes.floor
      from lanes
      cross join lateral (
        select ahead.rank
        from tenantry.workflow_runs as ahead
        where ahead.tenant_id = tenant
          and ahead.workflow_id = lanes.workflow_id
          and ahead.version = lanes.version
          and ahead.priority = lanes.priority
          and ahead.rank >= lanes.floor
          and ahead.ready
        order by ahead.rank
        limit most
      ) as head
      order by head.rank
      limit most
    ),
    shares as (
      select heads.workflow_id, heads.version, heads.priority, heads.floor, count(*) as runs
      from heads
      group by heads.workflow_id, heads.version, heads.priority, heads.floor
    )
    select
      run.run_id, run.workflow_id, run.version, run.status, run.priority, run.event_sequence, run.redrive_count,
      run.traceparent, run.tracestate, run.updated_at, tenantry.now() as now,
      run.input::text as input, run.config::text as config, run.available_at, run.rank,
      run.workflow_id as lane_workflow_id, run.version as lane_version, run.priority as lane_priority
    from shares
    cross join lateral (
      select candidate.*
      from tenantry.workflow_runs as candidate
      where candidate.tenant_id = tenant
        and candidate.workflow_id = shares.workflow_id
        and candidate.version = shares.version
        and candidate.priority = shares.priority
        and candidate.rank >= shares.floor
        and candidate.ready
      order by candidate.rank
      limit shares.runs
      for no key update of candidate skip locked
    ) as run
    order by run.rank, run.run_id;
end
$$;
