-- name: write
-- Claims, outcomes, polls and ends of steps, for many executions in one statement. The function's text (migrations, 0018)
-- says what each op needs and does; it locks the runs first and decides in later statements. Rows come of the ops only that
-- did not end as they were to; of claims and outcomes, that is: all others have one.
select
  answer.n, answer.verdict, answer.run_status, answer.kind, answer.status, answer.attempt, answer.failures,
  answer.stage_attempt, answer.seq, answer.is_reclaim, answer.lease_expires_at, answer.due_at, answer.deadline_at,
  answer.external_key, answer.result, answer.error, answer.error_type, answer.now
from tenantry.step_ledger_v2(:tenant_id::uuid, :ops::text::json, :wait::boolean) as answer

-- name: ledger
-- Every step of one stage: what a replay answers from.
select
  step.step_id, step.kind, step.status, step.attempt, step.failures, step.stage_attempt, step.seq, step.is_reclaim,
  step.lease_expires_at, step.due_at, step.deadline_at, step.external_key, step.result::text as result,
  case when step.status = 'completed' then step.result_digest end as result_digest, step.run_id, step.error, step.error_type,
  step.lapses, tenantry.now() as now
from tenantry.workflow_steps as step
where step.tenant_id = :tenant_id::uuid and step.run_id = :run_id::uuid and step.stage_id = :stage_id::text
order by step.seq, step.step_id

-- name: told
-- The refused outcomes that these runs' annotations tell of already. Runs whose lock is held.
select
  annotation.run_id, annotation.stage_id, annotation.value ->> 'step_id' as step_id,
  annotation.value ->> 'attempt' as attempt
from tenantry.workflow_annotations as annotation
where annotation.tenant_id = :tenant_id::uuid and annotation.run_id = any(:run_ids::uuid[])
  and annotation.key = 'step.outcome_conflict'
