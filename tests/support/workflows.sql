-- name: advance
-- Move the engine's clock within this transaction.
select set_config('tenantry.clock_offset', :offset::text, true)
