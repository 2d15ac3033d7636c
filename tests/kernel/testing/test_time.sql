-- name: now
-- The engine's clock.
select tenantry.now() as now
