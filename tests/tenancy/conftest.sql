-- name: add
-- role: tenantry_tenant
insert into tenantry.workflow_run_tags (tenant_id, tag, run_id)
values (:tenant_id::uuid, :tag::text, :run_id::uuid)

-- name: tags
select tags.tag, tags.run_id
from tenantry.workflow_run_tags as tags
where tags.tenant_id = :tenant_id::uuid
order by tags.tag

-- name: forget
delete from tenantry.workflow_run_tags
where tenant_id = :tenant_id::uuid

-- name: divide
select 1 / :by::int as result

-- name: wait
select pg_sleep(:seconds::float8)

-- name: who
select
  current_user::text as role,
  pg_backend_pid() as pid,
  nullif(current_setting('tenantry.tenant_id', true), '') as tenant,
  5 % 3 as rest,
  'a%:b::c' as text

-- name: types
select
  gen_random_uuid() as id,
  array[gen_random_uuid()] as ids,
  timestamptz '2026-01-01 12:00:00+00' as at,
  :items::text::json::text as items

-- name: zone
select set_config('timezone', :zone::text, true)

-- name: leave_idle
select set_config('idle_in_transaction_session_timeout', :timeout::text, true)

-- name: raise_state
select tenantry_test.fail(:state::text)
