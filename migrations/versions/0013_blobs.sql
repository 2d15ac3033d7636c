-- The blob store. A payload beyond the soft limit is kept here, once for its run however many rows answer with it, and its rows
-- hold the digest: SHA-256 of the JSON text in UTF-8. No foreign key: purge and deletion go by (tenant_id, run_id).
create table tenantry.workflow_blobs (
  tenant_id uuid not null default tenantry.current_tenant_id(),
  run_id uuid not null,
  digest bytea not null,
  content text not null,
  constraint workflow_blobs_pkey primary key (tenant_id, run_id, digest)
);
-- Out of line and as it is: compressing is most of what storing a large payload costs (pglz, the only method that every build
-- has), and it is paid with the runs' locks held.
alter table tenantry.workflow_blobs alter column content set storage external;

-- A run's input and config never change, so a digest says where the payload is that is not in the row.
alter table tenantry.workflow_runs
  alter column input drop not null,
  alter column config drop not null,
  add column input_digest bytea,
  add column config_digest bytea,
  add column output_digest bytea,
  add constraint workflow_runs_payloads check (
    (input is not null or input_digest is not null) and (config is not null or config_digest is not null)
  );

-- What is completed has an output or a result (a JSON null is one): where it is NULL the digest says where it is, and only
-- there a digest means anything; a redrive may leave an old one. A sleep completes with neither.
alter table tenantry.workflow_stages add column output_digest bytea;
alter table tenantry.workflow_steps add column result_digest bytea;

-- As in 0002, and: an input or a config may be in the blob store already, written before in this transaction. Digests are hex.
create or replace function tenantry.create_runs_v1(tenant uuid, at timestamptz, runs json, tags json)
returns void
language plpgsql volatile security invoker
set search_path = pg_catalog, pg_temp
as $$
begin
  insert into tenantry.workflow_runs (
    tenant_id, run_id, workflow_id, version, priority, rank, ready, available_at, input, config, input_digest,
    config_digest, event_sequence, created_at, updated_at, traceparent, tracestate
  )
  select
    tenant, item.run_id, item.workflow_id, item.version, item.priority,
    due.at - item.priority * interval '60 seconds', due.at <= create_runs_v1.at, due.at,
    item.input::json, item.config::json, decode(item.input_digest, 'hex'), decode(item.config_digest, 'hex'),
    1, create_runs_v1.at, create_runs_v1.at, item.traceparent, item.tracestate
  from json_to_recordset(runs) as item (
    run_id uuid, workflow_id text, version text, priority smallint, run_at timestamptz, input text, config text,
    input_digest text, config_digest text, traceparent text, tracestate text
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

-- The most bytes of JSON text that a payload has in its row: what run.create goes by unless its host says otherwise.
create function tenantry.inline_payload_bytes() returns int
language sql immutable parallel safe
return 256 * 1024;

-- As in 0012, and: an input or a config of more than that goes to the blob store.
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
  soft_limit constant int := tenantry.inline_payload_bytes();
  input_digest bytea;
  config_digest bytea;
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

  if octet_length(enqueue.input::text) > soft_limit then
    input_digest := sha256(convert_to(enqueue.input::text, 'UTF8'));
    insert into tenantry.workflow_blobs (tenant_id, run_id, digest, content)
    values (tenant, run, input_digest, enqueue.input::text)
    on conflict (tenant_id, run_id, digest) do nothing;
  end if;
  if octet_length(enqueue.config::text) > soft_limit then
    config_digest := sha256(convert_to(enqueue.config::text, 'UTF8'));
    insert into tenantry.workflow_blobs (tenant_id, run_id, digest, content)
    values (tenant, run, config_digest, enqueue.config::text)
    on conflict (tenant_id, run_id, digest) do nothing;
  end if;
  perform tenantry.create_runs_v1(
    tenant,
    at,
    json_build_array(json_build_object(
      'run_id', run, 'workflow_id', enqueue.workflow_id, 'version', coalesce(enqueue.definition_version, ''),
      'priority', enqueue.priority,
      'input', case when input_digest is null then enqueue.input::text end, 'input_digest', encode(input_digest, 'hex'),
      'config', case when config_digest is null then enqueue.config::text end, 'config_digest', encode(config_digest, 'hex')
    )),
    null
  );
  return run;
end
$$;
