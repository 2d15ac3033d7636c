-- name: spans
-- The spans of one run, by its key, oldest first; as many as a run is given.
select
  span.trace_id, span.span_id, span.parent_span_id, span.name, span.kind, span.start_time, span.end_time, span.status,
  span.attributes::text as attributes, span.links::text as links
from tenantry.spans as span
where span.tenant_id = :tenant_id::uuid and span.run_id = :run_id::uuid
order by span.start_time, span.span_id
limit :limit::int

-- name: tries
-- When functions of some of a run's steps were at work, oldest first: the spans that the engine made for them, by the run's key.
-- A library's spans within them name the step too, but no attempt.
select
  span.start_time, span.end_time, span.status, span.attributes ->> 'tenantry.stage' as stage_id,
  span.attributes ->> 'tenantry.step' as step_id, span.attributes ->> 'tenantry.step.attempt' as attempt,
  span.attributes ->> 'error.type' as error_type
from tenantry.spans as span
where span.tenant_id = :tenant_id::uuid and span.run_id = :run_id::uuid
  and span.attributes ->> 'tenantry.op' = 'step.run'
  and span.attributes ->> 'tenantry.step.attempt' is not null
  and span.attributes ->> 'tenantry.step' = any(:step_ids::text[])
order by span.start_time, span.span_id
limit :limit::int
