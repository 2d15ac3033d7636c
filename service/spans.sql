-- name: insert
-- Add spans of this tenant's runs, each run at most as many as the cap leaves room for; a repeat changes nothing. Spans of
-- runs that are not there (rolled back, purged) are nobody's.
with given as (
  select
    item.run_id, item.start_time, item.span_id, item.trace_id, item.parent_span_id, item.name, item.kind, item.end_time,
    item.status, item.attributes, item.links,
    row_number() over (partition by item.run_id order by item.start_time, item.span_id) as place
  from json_to_recordset(:items::json) as item (
    run_id uuid, start_time timestamptz, span_id text, trace_id text, parent_span_id text, name text, kind text,
    end_time timestamptz, status text, attributes json, links json
  )
), runs as (
  select wanted.run_id, kept.number
  from (select distinct given.run_id from given) as wanted
  join tenantry.workflow_runs as run on run.tenant_id = :tenant_id::uuid and run.run_id = wanted.run_id
  cross join lateral (
    select count(*) as number
    from (
      select from tenantry.spans as span
      where span.tenant_id = :tenant_id::uuid and span.run_id = wanted.run_id
      limit :cap::int
    ) as spans
  ) as kept
)
insert into tenantry.spans (
  tenant_id, run_id, start_time, span_id, trace_id, parent_span_id, name, kind, end_time, status, attributes, links
)
select
  :tenant_id::uuid, given.run_id, given.start_time, given.span_id, given.trace_id, given.parent_span_id, given.name,
  given.kind, given.end_time, given.status, given.attributes, given.links
from given
join runs using (run_id)
where given.place + runs.number <= :cap::int
on conflict (tenant_id, run_id, start_time, span_id) do nothing

-- name: prune
-- Throw a page of old spans away. A span is no older than its run, so the ids' own time bounds the scan of the key.
with old as (
  select span.run_id, span.start_time, span.span_id
  from tenantry.spans as span
  where span.tenant_id = :tenant_id::uuid
    and span.run_id < tenantry.uuid7_floor(:older_than::timestamptz)
    and span.start_time < :older_than::timestamptz
  order by span.run_id, span.start_time, span.span_id
  limit :limit::int
)
delete from tenantry.spans as span
using old
where span.tenant_id = :tenant_id::uuid
  and span.run_id = old.run_id and span.start_time = old.start_time and span.span_id = old.span_id
