-- Payloads that are too large for their rows, and who refers to them. Nothing here is sent for a payload of ordinary size.

-- name: keep
-- Keep one payload of a run, once: whoever was first wrote the same. One statement a payload, because a parameter holds at
-- most 1 GB and a text inside of an array would be escaped.
insert into tenantry.workflow_blobs (tenant_id, run_id, digest, content)
values (:tenant_id::uuid, :run_id::uuid, :digest::bytea, :content::text)
on conflict (tenant_id, run_id, digest) do nothing

-- name: contents
-- The payloads of these runs that have one of these digests, by their key.
select blob.run_id, blob.digest, blob.content
from tenantry.workflow_blobs as blob
where blob.tenant_id = :tenant_id::uuid and blob.run_id = any(:run_ids::uuid[]) and blob.digest = any(:digests::bytea[])

-- name: refer_stages
-- Stages that have just completed without an output in their rows say where it is. The runs' locks are held.
update tenantry.workflow_stages as stage
set output_digest = decode(item.digest, 'hex')
from json_to_recordset(:items::text::json) as item (run_id uuid, stage_id text, digest text)
where stage.tenant_id = :tenant_id::uuid and stage.run_id = any(:run_ids::uuid[])
  and stage.run_id = item.run_id and stage.stage_id = item.stage_id
  and stage.status = 'COMPLETED' and stage.output is null

-- name: refer_runs
-- The same for runs.
update tenantry.workflow_runs as run
set output_digest = decode(item.digest, 'hex')
from json_to_recordset(:items::text::json) as item (run_id uuid, digest text)
where run.tenant_id = :tenant_id::uuid and run.run_id = any(:run_ids::uuid[])
  and run.run_id = item.run_id and run.status = 'COMPLETED' and run.output is null

-- name: refer_steps
-- The same for steps. One that somebody else completed in the meantime has its result, or says already where it is.
update tenantry.workflow_steps as step
set result_digest = decode(item.digest, 'hex')
from json_to_recordset(:items::text::json) as item (run_id uuid, stage_id text, step_id text, digest text)
where step.tenant_id = :tenant_id::uuid and step.run_id = any(:run_ids::uuid[])
  and step.run_id = item.run_id and step.stage_id = item.stage_id and step.step_id = item.step_id
  and step.status = 'completed' and step.result is null and step.result_digest is null

-- name: existing
-- Which of these runs exist: tells a payload that went with its run from one that is lost.
select run.run_id
from tenantry.workflow_runs as run
where run.tenant_id = :tenant_id::uuid and run.run_id = any(:run_ids::uuid[])

-- name: digests_of_runs
-- Where the input and the config are that these runs do not have in their rows.
select run.run_id, run.input_digest, run.config_digest
from tenantry.workflow_runs as run
where run.tenant_id = :tenant_id::uuid and run.run_id = any(:run_ids::uuid[])

-- name: digests_of_steps
-- Where the results of these steps are.
select step.run_id, step.stage_id, step.step_id, step.result_digest
from json_to_recordset(:items::text::json) as item (run_id uuid, stage_id text, step_id text)
join tenantry.workflow_steps as step
  on step.tenant_id = :tenant_id::uuid and step.run_id = any(:run_ids::uuid[])
  and step.run_id = item.run_id and step.stage_id = item.stage_id and step.step_id = item.step_id
where step.result is null and step.result_digest is not null
