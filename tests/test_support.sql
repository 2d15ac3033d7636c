-- name: own_slug
-- The bound tenant's slug.
select tenants.slug
from tenantry.tenants as tenants
where tenants.tenant_id = :tenant_id::uuid
