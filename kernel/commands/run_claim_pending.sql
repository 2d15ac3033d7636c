-- name: claim
-- Lock the next ready runs of the served (workflow, version) pairs, leaving out what others hold; '' is an unpinned run. The
-- function's text is in the migrations (0006).
select
  claimed.run_id, claimed.workflow_id, claimed.version, claimed.status, claimed.priority, claimed.event_sequence,
  claimed.redrive_count, claimed.traceparent, claimed.tracestate, claimed.updated_at, claimed.now, claimed.input,
  claimed.config, claimed.available_at, claimed.rank, claimed.lane_workflow_id, claimed.lane_version, claimed.lane_priority
from tenantry.claim_runs_v1(:tenant_id::uuid, :served::text::json, :limit::int) as claimed
