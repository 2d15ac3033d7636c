-- name: settle
-- Settle leases that stand as their worker last saw them, or write nothing and say so. The function's text is in the
-- migrations (0007); it locks the runs first and looks in a later statement.
select told.is_written, told.now
from tenantry.settle_expected_v1(
  :tenant_id::uuid,
  :expected::text::json,
  :at::timestamptz,
  :ops::text::json,
  :run_ids::uuid[],
  :run_updates::text::json,
  :stage_inserts::text::json,
  :stage_updates::text::json,
  :job_deletes::text::json,
  :job_inserts::text::json,
  :job_updates::text::json,
  :events::text::json,
  :annotations::text::json
) as told
