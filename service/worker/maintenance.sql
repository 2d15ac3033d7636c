-- name: retention
-- How long this tenant's finished runs are kept, and the database's clock; no row in `tenants` means the setting's.
select tenant.retention, tenantry.now() as now
from (select :tenant_id::uuid as tenant_id) as bound
left join tenantry.tenants as tenant on tenant.tenant_id = :tenant_id::uuid
