-- name: clock
-- The database's clock: what it is compared with, leases, was written by the same one.
select tenantry.now() as now
