-- The writes of every command that moves a run, in one statement: so that one run and fifty cost the same, and a batch of
-- one is not planned anew each time. The function's text (the newest revision that has it) says what each argument does; it is executed
-- with the runs' locks held, which is why it checks no state again.

-- name: write
-- Write everything that this transaction made of its locked runs; null stands for "none of these".
select tenantry.write_changes_v1(
  :tenant_id::uuid,
  :run_ids::uuid[],
  :definitions::text::json,
  :run_updates::text::json,
  :stage_inserts::text::json,
  :stage_updates::text::json,
  :job_deletes::text::json,
  :job_inserts::text::json,
  :job_updates::text::json,
  :events::text::json,
  :annotations::text::json
)
