-- The spine: every table that runs, stages, jobs, events, tenants and keys need.
-- Roles exist already (migrations/roles.py); row-level security and grants follow in the Python half of this revision.


-- The bound tenant. nullif, because after the first transaction on a server connection the setting reads '' and not NULL.
-- No SET clause: it would forbid inlining into policies. A product with its own way to name the tenant replaces just this.
create function tenantry.current_tenant_id() returns uuid
language sql stable parallel safe
return nullif(current_setting('tenantry.tenant_id', true), '')::uuid;

-- The engine's clock: the database's, moved by a transaction-local offset in tests.
-- CASE and not COALESCE: under row-level security the planner takes COALESCE for leaky and drops the index condition.
create function tenantry.now() returns timestamptz
language sql stable parallel safe
return case
  when current_setting('tenantry.clock_offset', true) <> ''
  then statement_timestamp() + current_setting('tenantry.clock_offset', true)::interval
  else statement_timestamp()
end;

-- A UUIDv7 (RFC 9562, method 3: 48 bits of milliseconds, 12 bits of the fraction of the millisecond, 62 random bits),
-- made by the database so that no host's clock orders runs. Row by row: it reads the wall clock.
create function tenantry.uuid7_at(at timestamptz) returns uuid
language sql volatile parallel safe
return (
  lpad(to_hex((extract(epoch from at) * 1000000)::bigint / 1000), 12, '0')
  || '7'
  || lpad(to_hex((extract(epoch from at) * 1000000)::bigint % 1000 * 4096 / 1000), 3, '0')
  || substr(gen_random_uuid()::text, 20)
)::uuid;

create function tenantry.uuid7() returns uuid
language sql volatile parallel safe
return tenantry.uuid7_at(clock_timestamp());

-- The smallest UUIDv7 of an instant: turns "created after" into a range on the primary key.
create function tenantry.uuid7_floor(at timestamptz) returns uuid
language sql stable parallel safe
return (
  lpad(to_hex((extract(epoch from at) * 1000000)::bigint / 1000), 12, '0')
  || '7'
  || lpad(to_hex((extract(epoch from at) * 1000000)::bigint % 1000 * 4096 / 1000), 3, '0')
  || '8000-000000000000'
)::uuid;

create table tenantry.tenants (
  tenant_id uuid not null,
  slug text not null check (slug ~ '^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$'),
  name text not null check (char_length(name) between 1 and 200),
  status text not null default 'active' check (status in ('active', 'suspended', 'deleting')),
  weight int not null default 1 check (weight between 1 and 1000),
  retention interval,
  created_at timestamptz not null default tenantry.now(),
  constraint tenants_pkey primary key (tenant_id),
  constraint tenants_slug_key unique (slug)
);

-- kind 'claim' holds running_jobs and is locked by a tick that claims; kind 'create' holds the limits on creation and is
-- locked last by a transaction that creates runs. A tenant without limits has no row and takes no lock.
create table tenantry.tenant_limits (
  tenant_id uuid not null default tenantry.current_tenant_id(),
  kind text not null check (kind in ('claim', 'create')),
  running_jobs int check (running_jobs >= 0),
  pending_runs int check (pending_runs >= 0),
  runs_per_minute int check (runs_per_minute >= 0),
  payload_bytes int check (payload_bytes >= 0),
  claimed_at timestamptz,
  constraint tenant_limits_pkey primary key (tenant_id, kind)
);

create table tenantry.api_keys (
  tenant_id uuid not null default tenantry.current_tenant_id(),
  key_id uuid not null,
  name text not null check (char_length(name) between 1 and 200),
  secret_hash bytea not null,
  scopes text[] not null,
  created_at timestamptz not null default tenantry.now(),
  expires_at timestamptz,
  revoked_at timestamptz,
  last_used_at timestamptz,
  constraint api_keys_pkey primary key (tenant_id, key_id)
);

create table tenantry.workflow_definitions (
  tenant_id uuid not null default tenantry.current_tenant_id(),
  workflow_id text not null,
  version text not null,
  structure_hash text not null,
  snapshot json not null,
  created_at timestamptz not null default tenantry.now(),
  constraint workflow_definitions_pkey primary key (tenant_id, workflow_id, version)
);

-- version '' means: not pinned yet (a run from SQL), pinned by the claim.
-- rank = due time - priority x 60 s. ready = PENDING and due.
create table tenantry.workflow_runs (
  tenant_id uuid not null default tenantry.current_tenant_id(),
  run_id uuid not null default tenantry.uuid7(),
  workflow_id text not null,
  version text not null default '',
  status text not null default 'PENDING'
    check (status in ('PENDING', 'RUNNING', 'COMPLETED', 'FAILED', 'CANCELLED')),
  priority smallint not null default 5 check (priority between 0 and 9),
  rank timestamptz not null,
  ready boolean not null,
  available_at timestamptz not null,
  input json not null,
  config json not null default '{}',
  output json,
  error json,
  redrive_count int not null default 0,
  event_sequence int not null default 0,
  created_at timestamptz not null default tenantry.now(),
  started_at timestamptz,
  completed_at timestamptz,
  updated_at timestamptz not null default tenantry.now(),
  traceparent text,
  tracestate text,
  constraint workflow_runs_pkey primary key (tenant_id, run_id)
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);

create index workflow_runs_ready on tenantry.workflow_runs (workflow_id, version, tenant_id, rank) where ready;
create index workflow_runs_waiting on tenantry.workflow_runs (available_at, tenant_id)
  where status = 'PENDING' and not ready;
-- Lists by status, counts for limits, and the tenants with RUNNING runs; a completed run has left it.
create index workflow_runs_open on tenantry.workflow_runs (status, tenant_id, run_id) where status <> 'COMPLETED';

create table tenantry.workflow_run_tags (
  tenant_id uuid not null default tenantry.current_tenant_id(),
  tag text not null check (char_length(tag) between 1 and 64),
  run_id uuid not null,
  constraint workflow_run_tags_pkey primary key (tenant_id, tag, run_id)
);
create index workflow_run_tags_run on tenantry.workflow_run_tags (tenant_id, run_id);

-- generation counts restarts from 'start'; announced_attempt is the highest attempt whose stage:started was written, so
-- that an attempt given back by a graceful stop is not announced twice. settled_* name the job that settled the stage:
-- a worker that never saw the reply to its COMMIT asks them before it repeats.
create table tenantry.workflow_stages (
  tenant_id uuid not null default tenantry.current_tenant_id(),
  run_id uuid not null,
  stage_id text not null,
  group_number smallint not null,
  number smallint not null,
  status text not null
    check (status in ('PENDING', 'RUNNING', 'SUSPENDED', 'COMPLETED', 'FAILED', 'CANCELLED', 'SKIPPED')),
  attempt int not null default 0,
  announced_attempt int not null default 0,
  max_attempts smallint not null,
  generation int not null default 0,
  output json,
  error_message text,
  next_poll_at timestamptz,
  poll_interval interval,
  deadline timestamptz,
  settled_attempt int,
  settled_started_at timestamptz,
  created_at timestamptz not null default tenantry.now(),
  started_at timestamptz,
  completed_at timestamptz,
  updated_at timestamptz not null default tenantry.now(),
  version int not null default 1,
  constraint workflow_stages_pkey primary key (tenant_id, run_id, stage_id)
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);

-- Only live and dead jobs: a settled job is removed. attempt counts within a generation; (attempt, started_at) is the fence.
create table tenantry.job_queue (
  tenant_id uuid not null default tenantry.current_tenant_id(),
  run_id uuid not null,
  stage_id text not null,
  workflow_id text not null,
  version text not null,
  status text not null default 'PENDING' check (status in ('PENDING', 'RUNNING', 'FAILED')),
  replay boolean not null default false,
  ready boolean not null,
  rank timestamptz not null,
  available_at timestamptz not null,
  attempt int not null default 0,
  max_attempts smallint not null,
  worker_id text,
  locked_at timestamptz,
  started_at timestamptz,
  last_error text,
  traceparent text,
  constraint job_queue_pkey primary key (tenant_id, run_id, stage_id)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
        autovacuum_analyze_scale_factor = 0.1);

create index job_queue_ready on tenantry.job_queue (workflow_id, version, tenant_id, rank) where ready;
create index job_queue_waiting on tenantry.job_queue (available_at, tenant_id) where status = 'PENDING' and not ready;
create index job_queue_running on tenantry.job_queue (tenant_id) where status = 'RUNNING';

create table tenantry.outbox_events (
  tenant_id uuid not null default tenantry.current_tenant_id(),
  run_id uuid not null,
  sequence int not null,
  type text not null,
  stage_id text,
  payload json not null,
  occurred_at timestamptz not null default tenantry.now(),
  constraint outbox_events_pkey primary key (tenant_id, run_id, sequence)
) with (autovacuum_vacuum_insert_scale_factor = 0.1);

create table tenantry.idempotency_keys (
  tenant_id uuid not null default tenantry.current_tenant_id(),
  command text not null,
  key text not null check (char_length(key) between 1 and 255),
  run_id uuid,
  fingerprint bytea not null,
  result json,
  created_at timestamptz not null default tenantry.now(),
  expires_at timestamptz not null,
  constraint idempotency_keys_pkey primary key (tenant_id, command, key)
);
create index idempotency_keys_run on tenantry.idempotency_keys (tenant_id, run_id);
create index idempotency_keys_expiry on tenantry.idempotency_keys (tenant_id, expires_at);

create table tenantry.workflow_logs (
  tenant_id uuid not null default tenantry.current_tenant_id(),
  log_id uuid not null default tenantry.uuid7(),
  run_id uuid not null,
  stage_id text not null,
  attempt int not null,
  level text not null,
  message text not null,
  fields json not null default '{}',
  created_at timestamptz not null default tenantry.now(),
  constraint workflow_logs_pkey primary key (tenant_id, run_id, log_id)
);

create table tenantry.workflow_annotations (
  tenant_id uuid not null default tenantry.current_tenant_id(),
  annotation_id uuid not null default tenantry.uuid7(),
  run_id uuid not null,
  stage_id text,
  attempt int,
  key text not null check (char_length(key) between 1 and 255),
  value json not null,
  payload json,
  created_at timestamptz not null default tenantry.now(),
  constraint workflow_annotations_pkey primary key (tenant_id, run_id, annotation_id)
);

-- What operators did to a tenant; written in the transaction of the deed.
create table tenantry.audit_log (
  tenant_id uuid not null default tenantry.current_tenant_id(),
  audit_id uuid not null default tenantry.uuid7(),
  actor text not null,
  action text not null,
  details json not null default '{}',
  occurred_at timestamptz not null default tenantry.now(),
  constraint audit_log_pkey primary key (tenant_id, audit_id)
);
