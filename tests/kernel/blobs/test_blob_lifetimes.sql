-- name: kept
-- What is kept for the tenant.
select blob.run_id, blob.digest
from tenantry.workflow_blobs as blob
where blob.tenant_id = :tenant_id::uuid
