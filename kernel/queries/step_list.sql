-- name: page
-- The durable steps of one run by its key, oldest first; those that were begun together in the order of their use.
-- The page is cut before results become text, so that only those that are shown are read, and again behind the result with
-- which they exceed most_bytes; found counts what the first cut left. How long a blob is, is read off its row. The steps of one
-- stage where it is named; without results nothing of them is read.
select
  measured.stage_id, measured.step_id, measured.seq, measured.kind, measured.status, measured.attempt, measured.external_key,
  measured.result::text as result, measured.run_id, measured.result_digest, measured.error, measured.lease_expires_at,
  measured.deadline_at, measured.created_at, measured.completed_at, measured.found
from (
  select
    page.stage_id, page.step_id, page.seq, page.kind, page.status, page.attempt, page.external_key, page.result, page.run_id,
    page.result_digest, page.error, page.lease_expires_at, page.deadline_at, page.created_at, page.completed_at, page.place,
    count(*) over () as found,
    sum(coalesce(
      octet_length(page.result::text),
      (
        select octet_length(blob.content)
        from tenantry.workflow_blobs as blob
        where blob.tenant_id = :tenant_id::uuid and blob.run_id = page.run_id and blob.digest = page.result_digest
      ),
      0
    )) over (
      order by page.created_at, page.stage_id, page.place, page.step_id
      rows between unbounded preceding and 1 preceding
    ) as bytes_before
  from (
    select
      step.stage_id, step.step_id, step.seq, step.kind, step.status, step.attempt, step.external_key, step.error, step.run_id,
      case when :with_results::boolean then step.result end as result,
      case when :with_results::boolean and step.status = 'completed' then step.result_digest end as result_digest,
      step.lease_expires_at, step.deadline_at, step.created_at, step.completed_at, coalesce(step.seq, 2147483647) as place
    from tenantry.workflow_steps as step
    where step.tenant_id = :tenant_id::uuid and step.run_id = :run_id::uuid
      and (:of_stage_id::text is null or step.stage_id = :of_stage_id::text)
      and (step.created_at, step.stage_id, coalesce(step.seq, 2147483647), step.step_id)
        > (:created_at::timestamptz, :stage_id::text, :place::int, :step_id::text)
    order by step.created_at, step.stage_id, place, step.step_id
    limit :limit::int
  ) as page
) as measured
where measured.bytes_before is null or measured.bytes_before <= :most_bytes::bigint
order by measured.created_at, measured.stage_id, measured.place, measured.step_id

-- name: one
-- One durable step by its key, with its result.
select
  step.stage_id, step.step_id, step.seq, step.kind, step.status, step.attempt, step.external_key, step.result::text as result,
  step.run_id, case when step.status = 'completed' then step.result_digest end as result_digest, step.error,
  step.lease_expires_at, step.deadline_at, step.created_at, step.completed_at
from tenantry.workflow_steps as step
where step.tenant_id = :tenant_id::uuid and step.run_id = :run_id::uuid and step.stage_id = :stage_id::text
  and step.step_id = :step_id::text
