-- name: insert_logs
-- Keep numbered log lines of leased jobs, of each run as many as it keeps; the first beyond them says that there were more.
-- They change nothing about a run, so they need no lock and no fence: what is written in the same moment may come on top.
with room as materialized (
  select said.run_id, said.keeps - kept.lines as lines
  from unnest(:run_ids::uuid[], :keeps::int[]) as said (run_id, keeps)
  cross join lateral (
    select count(*) as lines
    from (
      select from tenantry.workflow_logs as line
      where line.tenant_id = :tenant_id::uuid and line.run_id = said.run_id
      limit said.keeps + 1
    ) as line
  ) as kept
)
insert into tenantry.workflow_logs (tenant_id, run_id, stage_id, attempt, level, message, fields, created_at)
select
  :tenant_id::uuid, line.run_id, line.stage_id, line.attempt, line.level, line.message, line.fields::json, line.created_at
from (
  select
    item.run_id, item.stage_id, item.attempt, item.created_at,
    case when item.number <= room.lines then item.level else 'warning' end as level,
    case when item.number <= room.lines then item.message else :told::text end as message,
    case when item.number <= room.lines then item.fields else '{}' end as fields
  from json_to_recordset(:items::text::json) as item (
    run_id uuid, stage_id text, attempt int, level text, message text, fields text, created_at timestamptz, number int
  )
  join room using (run_id)
  where item.number <= room.lines + 1
  order by item.number
) as line
