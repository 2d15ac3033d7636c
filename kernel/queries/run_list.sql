-- Pages of runs, newest first by the run's key, which is made of time. `before` is the last run of the page before.
-- A run's id is drawn at most moments before or after its created_at; the hour of slack only bounds the range that is read.

-- name: page
-- By the primary key; a status in the list is a filter on the way.
select
  run.run_id, run.workflow_id, nullif(run.version, '') as version, run.status, run.priority, run.error::text as error,
  run.redrive_count, run.created_at, run.available_at as run_at, run.started_at, run.completed_at, run.traceparent,
  array(
    select tagged.tag
    from tenantry.workflow_run_tags as tagged
    where tagged.tenant_id = :tenant_id::uuid and tagged.run_id = run.run_id
    order by tagged.tag
  ) as tags
from tenantry.workflow_runs as run
where run.tenant_id = :tenant_id::uuid and run.run_id < :before::uuid
  and run.run_id >= tenantry.uuid7_floor(:created_after::timestamptz - interval '1 hour')
  and run.run_id < tenantry.uuid7_floor(:created_before::timestamptz + interval '1 hour')
  and (:statuses::text[] is null or run.status = any(:statuses::text[]))
  and run.created_at > :created_after::timestamptz and run.created_at < :created_before::timestamptz
  and (:workflow_id::text is null or run.workflow_id = :workflow_id::text)
order by run.run_id desc
limit :limit::int

-- name: page_of_open
-- Statuses other than COMPLETED have an index of their own: few among many finished runs are found without reading those.
select
  run.run_id, run.workflow_id, nullif(run.version, '') as version, run.status, run.priority, run.error::text as error,
  run.redrive_count, run.created_at, run.available_at as run_at, run.started_at, run.completed_at, run.traceparent,
  array(
    select tagged.tag
    from tenantry.workflow_run_tags as tagged
    where tagged.tenant_id = :tenant_id::uuid and tagged.run_id = run.run_id
    order by tagged.tag
  ) as tags
from (
  select picked.run_id
  from unnest(:statuses::text[]) as wanted (status)
  cross join lateral (
    select run.run_id
    from tenantry.workflow_runs as run
    where run.tenant_id = :tenant_id::uuid and run.status = wanted.status and run.status <> 'COMPLETED'
      and run.run_id < :before::uuid
      and run.run_id >= tenantry.uuid7_floor(:created_after::timestamptz - interval '1 hour')
      and run.run_id < tenantry.uuid7_floor(:created_before::timestamptz + interval '1 hour')
      and run.created_at > :created_after::timestamptz and run.created_at < :created_before::timestamptz
      and (:workflow_id::text is null or run.workflow_id = :workflow_id::text)
    order by run.run_id desc
    limit :limit::int
  ) as picked
  order by picked.run_id desc
  limit :limit::int
) as page
join tenantry.workflow_runs as run on run.tenant_id = :tenant_id::uuid and run.run_id = page.run_id
order by run.run_id desc

-- name: page_of_tags
-- From the rows of one tag, in key order; a run needs all of the tags.
select
  run.run_id, run.workflow_id, nullif(run.version, '') as version, run.status, run.priority, run.error::text as error,
  run.redrive_count, run.created_at, run.available_at as run_at, run.started_at, run.completed_at, run.traceparent,
  array(
    select tagged.tag
    from tenantry.workflow_run_tags as tagged
    where tagged.tenant_id = :tenant_id::uuid and tagged.run_id = run.run_id
    order by tagged.tag
  ) as tags
from tenantry.workflow_run_tags as marked
join tenantry.workflow_runs as run on run.tenant_id = :tenant_id::uuid and run.run_id = marked.run_id
where marked.tenant_id = :tenant_id::uuid and marked.tag = :tag::text and marked.run_id < :before::uuid
  and marked.run_id >= tenantry.uuid7_floor(:created_after::timestamptz - interval '1 hour')
  and marked.run_id < tenantry.uuid7_floor(:created_before::timestamptz + interval '1 hour')
  and (:statuses::text[] is null or run.status = any(:statuses::text[]))
  and run.created_at > :created_after::timestamptz and run.created_at < :created_before::timestamptz
  and (:workflow_id::text is null or run.workflow_id = :workflow_id::text)
  and not exists (
    select
    from unnest(:tags::text[]) as wanted (tag)
    where not exists (
      select
      from tenantry.workflow_run_tags as tagged
      where tagged.tenant_id = :tenant_id::uuid and tagged.tag = wanted.tag and tagged.run_id = run.run_id
    )
  )
order by marked.run_id desc
limit :limit::int

-- name: open_ids
-- The ids of runs of these statuses, COMPLETED not among them, newest first: what a request on many runs is about.
select run.run_id
from tenantry.workflow_runs as run
where run.tenant_id = :tenant_id::uuid and run.status = any(:statuses::text[]) and run.status <> 'COMPLETED'
  and run.run_id < :before::uuid
  and run.run_id >= tenantry.uuid7_floor(:created_after::timestamptz - interval '1 hour')
  and run.run_id < tenantry.uuid7_floor(:created_before::timestamptz + interval '1 hour')
  and run.created_at > :created_after::timestamptz and run.created_at < :created_before::timestamptz
  and (:workflow_id::text is null or run.workflow_id = :workflow_id::text)
  and not exists (
    select
    from unnest(:tags::text[]) as wanted (tag)
    where not exists (
      select
      from tenantry.workflow_run_tags as tagged
      where tagged.tenant_id = :tenant_id::uuid and tagged.tag = wanted.tag and tagged.run_id = run.run_id
    )
  )
order by run.run_id desc
limit :limit::int

-- name: ids
-- The same for all statuses, by the primary key.
select run.run_id
from tenantry.workflow_runs as run
where run.tenant_id = :tenant_id::uuid and run.status = any(:statuses::text[])
  and run.run_id < :before::uuid
  and run.run_id >= tenantry.uuid7_floor(:created_after::timestamptz - interval '1 hour')
  and run.run_id < tenantry.uuid7_floor(:created_before::timestamptz + interval '1 hour')
  and run.created_at > :created_after::timestamptz and run.created_at < :created_before::timestamptz
  and (:workflow_id::text is null or run.workflow_id = :workflow_id::text)
  and not exists (
    select
    from unnest(:tags::text[]) as wanted (tag)
    where not exists (
      select
      from tenantry.workflow_run_tags as tagged
      where tagged.tenant_id = :tenant_id::uuid and tagged.tag = wanted.tag and tagged.run_id = run.run_id
    )
  )
order by run.run_id desc
limit :limit::int
