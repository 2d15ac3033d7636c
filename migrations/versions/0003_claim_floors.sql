-- Claims from a floor. A transaction that is open elsewhere for an hour keeps the dead entries of an hour's claims at the head
-- of the ready indexes, and every claim walks over them; a worker that remembers how far it claimed starts behind them. The
-- rank holds the priority (a minute for each step), so one floor by rank would hide a more urgent run that came later: the
-- floor is one for each priority, and the priority stands before the rank.
drop index tenantry.workflow_runs_ready;
create index workflow_runs_ready on tenantry.workflow_runs (workflow_id, version, tenant_id, priority, rank) where ready;

alter table tenantry.job_queue add column priority smallint not null default 0 check (priority between 0 and 9);

-- Under forced row-level security the owner sees no row of a tenant's, and no tenant to bind one after the other. The tables
-- are locked until this transaction ends, so nobody ever finds them unforced.
alter table tenantry.workflow_runs no force row level security;
alter table tenantry.job_queue no force row level security;
update tenantry.job_queue as job
set priority = run.priority
from tenantry.workflow_runs as run
where run.tenant_id = job.tenant_id and run.run_id = job.run_id and run.priority <> 0;
alter table tenantry.workflow_runs force row level security;
alter table tenantry.job_queue force row level security;

drop index tenantry.job_queue_ready;
create index job_queue_ready on tenantry.job_queue (workflow_id, version, tenant_id, priority, rank) where ready;

-- As in 0002, and the priority of new jobs. The arguments are the same, so both releases call it.
create or replace function tenantry.write_changes_v1(
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

grant select (priority) on tenantry.workflow_runs, tenantry.job_queue to tenantry_scheduler;

-- Who has work, and of which served pairs? As due_tenants_v1, with the pairs as JSON [workflow_id, version].
create function tenantry.due_tenants_v2(served json, after uuid, page int)
returns table (
  tenant_id uuid, is_waiting boolean, was_walked boolean, weight int, status text, jobs json, runs json
)
language plpgsql volatile security invoker
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_column
begin
  return query
    with pairs as (
      select true as is_job, pair.workflow_id, pair.version
      from json_to_recordset(served) as pair (workflow_id text, version text)
      union all
      select false, pair.workflow_id, pair.version
      from json_to_recordset(served) as pair (workflow_id text, version text)
      union
      select false, pair.workflow_id, ''
      from json_to_recordset(served) as pair (workflow_id text, version text)
    ),
    walked as (
      select pairs.is_job, pairs.workflow_id, pairs.version, found.tenant_id
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
      where pairs.is_job
      union all
      select pairs.is_job, pairs.workflow_id, pairs.version, found.tenant_id
      from pairs
      cross join lateral (
        with recursive walk (tenant_id) as (
          (
            select run.tenant_id
            from tenantry.workflow_runs as run
            where run.workflow_id = pairs.workflow_id and run.version = pairs.version and run.ready
              and run.tenant_id >= after
            order by run.tenant_id
            limit 1
          )
          union all
          select (
            select run.tenant_id
            from tenantry.workflow_runs as run
            where run.workflow_id = pairs.workflow_id and run.version = pairs.version and run.ready
              and run.tenant_id > walk.tenant_id
            order by run.tenant_id
            limit 1
          )
          from walk
          where walk.tenant_id is not null
        )
        select walk.tenant_id from walk where walk.tenant_id is not null limit page
      ) as found
      where not pairs.is_job
    ),
    due as (
      select walked.tenant_id, walked.is_job, walked.workflow_id, walked.version, false as is_waiting, true as was_walked
      from walked
      union all
      select waiting.tenant_id, null, null, null, true, false
      from (
        select job.tenant_id
        from tenantry.job_queue as job
        where job.status = 'PENDING' and not job.ready and job.available_at <= tenantry.now()
        order by job.available_at
        limit 1000
      ) as waiting
      union all
      select waiting.tenant_id, null, null, null, true, false
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
      bool_or(due.is_waiting),
      bool_or(due.was_walked),
      coalesce(min(tenant.weight), 1),
      coalesce(min(tenant.status), 'active'),
      json_agg(json_build_array(due.workflow_id, due.version)) filter (where due.is_job),
      json_agg(json_build_array(due.workflow_id, due.version)) filter (where not due.is_job)
    from due
    left join tenantry.tenants as tenant on tenant.tenant_id = due.tenant_id
    group by due.tenant_id
    order by due.tenant_id;
end
$$;

-- The same from floors on. The walk from tenant to tenant has to pass the dead entries of each that has nothing ready: the
-- tenants in `floors` are left out of it and probed by themselves, in each lane from its floor on, and the walk goes over the
-- gaps between them. Items of floors are {is_job, tenant_id, workflow_id, version, floors: {priority: rank}}. `was_walked` tells
-- which tenants count for the page. A function of its own, because planning it costs twice what planning the other costs.
create function tenantry.due_tenants_from_v1(served json, after uuid, page int, floors json)
returns table (
  tenant_id uuid, is_waiting boolean, was_walked boolean, weight int, status text, jobs json, runs json
)
language plpgsql volatile security invoker
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_column
begin
  return query
    with pairs as (
      select true as is_job, pair.workflow_id, pair.version
      from json_to_recordset(served) as pair (workflow_id text, version text)
      union all
      select false, pair.workflow_id, pair.version
      from json_to_recordset(served) as pair (workflow_id text, version text)
      union
      select false, pair.workflow_id, ''
      from json_to_recordset(served) as pair (workflow_id text, version text)
    ),
    known as (
      select item.is_job, item.tenant_id, item.workflow_id, item.version, item.floors
      from json_to_recordset(floors) as item (is_job boolean, tenant_id uuid, workflow_id text, version text, floors json)
    ),
    gaps as (
      select
        ends.is_job, ends.workflow_id, ends.version, ends.tenant_id as upper,
        lag(ends.tenant_id, 1, lpad('', 32, '0')::uuid) over (
          partition by ends.is_job, ends.workflow_id, ends.version order by ends.tenant_id
        ) as lower
      from (
        select pairs.is_job, pairs.workflow_id, pairs.version, lpad('', 32, 'f')::uuid as tenant_id
        from pairs
        union all
        select known.is_job, known.workflow_id, known.version, known.tenant_id
        from known
      ) as ends
    ),
    walked as (
      select gaps.is_job, gaps.workflow_id, gaps.version, found.tenant_id
      from gaps
      cross join lateral (
        with recursive walk (tenant_id) as (
          (
            select job.tenant_id
            from tenantry.job_queue as job
            where job.workflow_id = gaps.workflow_id and job.version = gaps.version and job.ready
              and job.tenant_id >= after and job.tenant_id > gaps.lower and job.tenant_id < gaps.upper
            order by job.tenant_id
            limit 1
          )
          union all
          select (
            select job.tenant_id
            from tenantry.job_queue as job
            where job.workflow_id = gaps.workflow_id and job.version = gaps.version and job.ready
              and job.tenant_id > walk.tenant_id and job.tenant_id < gaps.upper
            order by job.tenant_id
            limit 1
          )
          from walk
          where walk.tenant_id is not null
        )
        select walk.tenant_id from walk where walk.tenant_id is not null limit page
      ) as found
      where gaps.is_job
      union all
      select gaps.is_job, gaps.workflow_id, gaps.version, found.tenant_id
      from gaps
      cross join lateral (
        with recursive walk (tenant_id) as (
          (
            select run.tenant_id
            from tenantry.workflow_runs as run
            where run.workflow_id = gaps.workflow_id and run.version = gaps.version and run.ready
              and run.tenant_id >= after and run.tenant_id > gaps.lower and run.tenant_id < gaps.upper
            order by run.tenant_id
            limit 1
          )
          union all
          select (
            select run.tenant_id
            from tenantry.workflow_runs as run
            where run.workflow_id = gaps.workflow_id and run.version = gaps.version and run.ready
              and run.tenant_id > walk.tenant_id and run.tenant_id < gaps.upper
            order by run.tenant_id
            limit 1
          )
          from walk
          where walk.tenant_id is not null
        )
        select walk.tenant_id from walk where walk.tenant_id is not null limit page
      ) as found
      where not gaps.is_job
    ),
    due as (
      select paged.tenant_id, paged.is_job, paged.workflow_id, paged.version, false as is_waiting, true as was_walked
      from (
        select
          walked.tenant_id, walked.is_job, walked.workflow_id, walked.version,
          row_number() over (
            partition by walked.is_job, walked.workflow_id, walked.version order by walked.tenant_id
          ) as place
        from walked
      ) as paged
      where paged.place <= page
      union all
      select known.tenant_id, true, known.workflow_id, known.version, false, false
      from known
      where known.is_job and exists (
        select
        from generate_series(0, 9) as level (priority)
        cross join lateral (
          select
          from tenantry.job_queue as job
          where job.workflow_id = known.workflow_id and job.version = known.version and job.ready
            and job.tenant_id = known.tenant_id and job.priority = level.priority
            and job.rank >= coalesce((known.floors ->> level.priority::text)::timestamptz, '-infinity')
          limit 1
        ) as head
      )
      union all
      select known.tenant_id, false, known.workflow_id, known.version, false, false
      from known
      where not known.is_job and exists (
        select
        from generate_series(0, 9) as level (priority)
        cross join lateral (
          select
          from tenantry.workflow_runs as run
          where run.workflow_id = known.workflow_id and run.version = known.version and run.ready
            and run.tenant_id = known.tenant_id and run.priority = level.priority
            and run.rank >= coalesce((known.floors ->> level.priority::text)::timestamptz, '-infinity')
          limit 1
        ) as head
      )
      union all
      select waiting.tenant_id, null, null, null, true, false
      from (
        select job.tenant_id
        from tenantry.job_queue as job
        where job.status = 'PENDING' and not job.ready and job.available_at <= tenantry.now()
        order by job.available_at
        limit 1000
      ) as waiting
      union all
      select waiting.tenant_id, null, null, null, true, false
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
      bool_or(due.is_waiting),
      bool_or(due.was_walked),
      coalesce(min(tenant.weight), 1),
      coalesce(min(tenant.status), 'active'),
      json_agg(json_build_array(due.workflow_id, due.version)) filter (where due.is_job),
      json_agg(json_build_array(due.workflow_id, due.version)) filter (where not due.is_job)
    from due
    left join tenantry.tenants as tenant on tenant.tenant_id = due.tenant_id
    group by due.tenant_id
    order by due.tenant_id;
end
$$;
