-- name: rows_read
-- Rows taken from a table by this transaction, and by those before it that the server has not counted elsewhere yet.
select seen.idx_tup_fetch + seen.seq_tup_read as rows
from pg_stat_xact_user_tables as seen
where seen.schemaname = 'tenantry' and seen.relname = :table::text
