-- What an application sends that starts its runs from SQL.

-- name: enqueue
-- A run for each number, keyed by it.
select tenantry.enqueue(made.number::text, 'three', json_build_object('n', made.number)::jsonb, definition_version => :version::text)
from unnest(:numbers::int[]) as made (number)
