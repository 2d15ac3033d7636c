-- name: page
-- What is noted at one run, by its key, oldest first; of each value and payload as much as is wanted. Where those before a row
-- have reached :most_bytes, it comes without them: it is for the next page. `is_superseded`: a redrive took the attempt back;
-- its own annotation says up to which. An output that a redrive archived by its digest is shown like one that is in the
-- annotation, as long as it is kept.
select
  page.annotation_id, page.stage_id, page.attempt, page.key, page.created_at, page.is_beyond,
  length(page.value::text) as value_length,
  length(coalesce('{"output":' || output.content || '}', page.payload::text)) as payload_length,
  case when not page.is_beyond then left(page.value::text, :most_length::int) end as value,
  case
    when not page.is_beyond then left(coalesce('{"output":' || output.content || '}', page.payload::text), :most_length::int)
  end as payload,
  coalesce(page.attempt <= taken_back.attempt, false) as is_superseded
from (
  select
    noted.annotation_id, noted.stage_id, noted.attempt, noted.key, noted.value, noted.payload, noted.created_at,
    noted.output_digest,
    coalesce(
      sum(
        least(octet_length(noted.value::text), :most_length::int)
        + least(
          coalesce(
            (
              select octet_length(blob.content)
              from tenantry.workflow_blobs as blob
              where blob.tenant_id = :tenant_id::uuid and blob.run_id = :run_id::uuid and blob.digest = noted.output_digest
            ),
            octet_length(noted.payload::text),
            0
          ),
          :most_length::int
        )
      ) over before >= :most_bytes::int,
      false
    ) as is_beyond
  from (
    select
      annotation.annotation_id, annotation.stage_id, annotation.attempt, annotation.key, annotation.value,
      annotation.payload, annotation.created_at,
      case
        -- A body may use the name for something of its own.
        when annotation.key = 'run.superseded_attempt' and annotation.value ->> 'redrive_count' is not null
          and annotation.payload ->> 'output_digest' ~ '^[0-9a-f]{64}$'
          then decode(annotation.payload ->> 'output_digest', 'hex')
      end as output_digest
    from tenantry.workflow_annotations as annotation
    where annotation.tenant_id = :tenant_id::uuid and annotation.run_id = :run_id::uuid
      and annotation.annotation_id > :after::uuid
      and (:stage_id::text is null or annotation.stage_id = :stage_id::text)
    order by annotation.annotation_id
    limit :limit::int
  ) as noted
  window before as (order by noted.annotation_id rows between unbounded preceding and 1 preceding)
) as page
left join tenantry.workflow_blobs as output
  on output.tenant_id = :tenant_id::uuid and output.run_id = :run_id::uuid and output.digest = page.output_digest
  and not page.is_beyond
left join (
  select archived.stage_id, max(archived.attempt) as attempt
  from tenantry.workflow_annotations as archived
  where archived.tenant_id = :tenant_id::uuid and archived.run_id = :run_id::uuid and archived.key = 'run.superseded_attempt'
    and archived.value ->> 'redrive_count' is not null
  group by archived.stage_id
) as taken_back on taken_back.stage_id = page.stage_id
order by page.annotation_id
