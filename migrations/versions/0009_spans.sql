-- The spans of tenants' runs: what their bodies and the engine did, as the tenant may see it. A copy for the run's page, not
-- the truth about the run; written off every path, bounded, and thrown away when it is old.

-- The key is what a run's trace is read by, in its order; run ids are UUIDv7, so old spans are found by it as well.
create table tenantry.spans (
  tenant_id uuid not null default tenantry.current_tenant_id(),
  run_id uuid not null,
  start_time timestamptz not null,
  span_id text not null check (char_length(span_id) <= 64),
  trace_id text not null check (char_length(trace_id) <= 64),
  parent_span_id text check (char_length(parent_span_id) <= 64),
  name text not null,
  kind text not null,
  end_time timestamptz not null,
  status text not null default 'UNSET' check (status in ('UNSET', 'OK', 'ERROR')),
  attributes json not null default '{}',
  links json not null default '[]',
  constraint spans_pkey primary key (tenant_id, run_id, start_time, span_id)
) with (autovacuum_vacuum_insert_scale_factor = 0.1);
