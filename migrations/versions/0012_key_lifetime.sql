-- One place says how long a key is kept, whether a run comes over HTTP, from Python or from SQL: the database.

-- 24 hours, or what the database says: alter database … set tenantry.idempotency_ttl = '48 hours'. A key is kept until its run
-- is over all the same.
create function tenantry.idempotency_ttl() returns interval
language sql stable parallel safe
return case
  when current_setting('tenantry.idempotency_ttl', true) <> ''
  then current_setting('tenantry.idempotency_ttl', true)::interval
  else interval '24 hours'
end;

-- Returns the run's id; a repeat of the key with the same request returns the first run's. Writes the rows that run.create
-- writes. What only a registry knows is checked when the run is claimed: an unknown workflow or version waits, an input or
-- config that its schema refuses fails the run then. Errors: 42501 no tenant is bound, 22023 a bad argument, TN001 the key
-- stands for another request, 55000 the tenant is not active, 53400 one of its limits on creation is reached.
create or replace function tenantry.enqueue(
  idempotency_key text, workflow_id text, input jsonb, config jsonb default '{}', priority int default 5,
  definition_version text default null
)
returns uuid
language plpgsql volatile security invoker
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  tenant uuid := tenantry.current_tenant_id();
  run uuid;
  at timestamptz;
  print bytea;
  kept record;
  asked record;
  recent int;
begin
  if tenant is null then
    raise exception 'no tenant is bound to this transaction' using errcode = '42501';
  end if;
  if enqueue.idempotency_key is null or char_length(enqueue.idempotency_key) not between 1 and 255 then
    raise exception 'idempotency_key has 1 to 255 characters' using errcode = '22023';
  end if;
  if enqueue.workflow_id is null or char_length(enqueue.workflow_id) not between 1 and 255 then
    raise exception 'workflow_id has 1 to 255 characters' using errcode = '22023';
  end if;
  if enqueue.input is null then
    raise exception 'input is required; a JSON null is ''null''::jsonb' using errcode = '22023';
  end if;
  if enqueue.config is null or jsonb_typeof(enqueue.config) <> 'object' then
    raise exception 'config is an object by stage id' using errcode = '22023';
  end if;
  if enqueue.priority is null or enqueue.priority not between 0 and 9 then
    raise exception 'priority is a number from 0 to 9' using errcode = '22023';
  end if;
  if char_length(enqueue.definition_version) not between 1 and 255 then
    raise exception 'definition_version has 1 to 255 characters' using errcode = '22023';
  end if;
  if enqueue.definition_version like 'sha256-%' and enqueue.definition_version !~ '^sha256-[0-9a-f]{32}$' then
    raise exception 'definition_version is no version: sha256- is followed by 32 hex digits' using errcode = '22023';
  end if;

  select standing.run_id, standing.now, standing.tenant_status, standing.pending_runs, standing.runs_per_minute, standing.payload_bytes
  into asked
  from tenantry.creation_standing_v1(tenant) as standing;
  run := asked.run_id;
  at := asked.now;
  if asked.tenant_status <> 'active' then
    raise exception 'the tenant is not active' using errcode = '55000';
  end if;
  if octet_length(enqueue.input::text) + octet_length(enqueue.config::text) > coalesce(asked.payload_bytes, 16777216) then
    raise exception 'input and config are larger than allowed' using errcode = '22023';
  end if;

  -- As run.create does: taken by an insert that writes nothing on conflict, looked at in a later statement, so that a
  -- concurrent holder is waited for and then seen, and nothing but a real conflict becomes an error.
  print := sha256(convert_to(
    jsonb_build_object(
      'workflow', enqueue.workflow_id, 'input', enqueue.input, 'config', enqueue.config, 'priority', enqueue.priority,
      'tags', '[]'::jsonb, 'run_at', null
    )::text,
    'UTF8'
  ));
  loop
    insert into tenantry.idempotency_keys (tenant_id, command, key, run_id, fingerprint, expires_at)
    values (tenant, 'run.create', enqueue.idempotency_key, run, print, at + tenantry.idempotency_ttl())
    on conflict (tenant_id, command, key) do nothing;
    exit when found;
    select
      held.run_id, held.fingerprint = print as is_same, held.expires_at,
      held.expires_at <= tenantry.now()
        and (earlier.run_id is null or earlier.status in ('COMPLETED', 'FAILED', 'CANCELLED')) as is_expired
    into kept
    from tenantry.idempotency_keys as held
    left join tenantry.workflow_runs as earlier on earlier.tenant_id = tenant and earlier.run_id = held.run_id
    where held.tenant_id = tenant and held.command = 'run.create' and held.key = enqueue.idempotency_key;
    -- Gone between the two statements: the key is free.
    continue when not found;
    if kept.is_expired then
      update tenantry.idempotency_keys as held
      set run_id = run, fingerprint = print, created_at = at, expires_at = at + tenantry.idempotency_ttl()
      where held.tenant_id = tenant and held.command = 'run.create' and held.key = enqueue.idempotency_key
        and held.expires_at = kept.expires_at;
      exit when found;
      continue;
    end if;
    if not kept.is_same then
      raise exception 'idempotency key was used for another request' using errcode = 'TN001';
    end if;
    return kept.run_id;
  end loop;

  if asked.pending_runs is not null or asked.runs_per_minute is not null then
    -- Lock first, count in a later statement: two creations at once would both count one too few.
    perform from tenantry.tenant_limits as creation
    where creation.tenant_id = tenant and creation.kind = 'create'
    for no key update of creation;
    if asked.pending_runs is not null then
      select count(*) into recent from (
        select from tenantry.workflow_runs as waiting
        where waiting.tenant_id = tenant and waiting.status = 'PENDING'
        limit asked.pending_runs
      ) as counted;
      if recent >= asked.pending_runs then
        raise exception 'the tenant has as many pending runs as it may' using errcode = '53400';
      end if;
    end if;
    if asked.runs_per_minute is not null then
      select count(*) into recent from (
        select from tenantry.workflow_runs as made
        where made.tenant_id = tenant and made.run_id >= tenantry.uuid7_floor(at - interval '1 minute')
        limit asked.runs_per_minute
      ) as counted;
      if recent >= asked.runs_per_minute then
        raise exception 'the tenant has started as many runs in a minute as it may' using errcode = '53400';
      end if;
    end if;
  end if;

  perform tenantry.create_runs_v1(
    tenant,
    at,
    json_build_array(json_build_object(
      'run_id', run, 'workflow_id', enqueue.workflow_id, 'version', coalesce(enqueue.definition_version, ''),
      'priority', enqueue.priority, 'input', enqueue.input::text, 'config', enqueue.config::text
    )),
    null
  );
  return run;
end
$$;
