-- name: spans
-- The spans of one run, by its key, oldest first; as many as a run is given.
select
  span.trace_id, span.span_id, span.parent_span_id, span.name, span.kind, span.start_time, span.end_time, span.status,
  span.attributes::text as attributes, span.links::text as links
from tenantry.spans as span
where span.tenant_id = :tenant_id::uuid and span.run_id = :run_id::uuid
order by span.start_time, span.span_id
limit :limit::int
