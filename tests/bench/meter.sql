-- name: keep_statistics
-- The counters live in the maintenance database, so that reading them does not count as work of the one measured.
create extension if not exists pg_stat_statements

-- name: counters
-- Every transaction that wrote took a number; statements are counted with BEGIN and COMMIT.
select
  pg_snapshot_xmax(pg_current_snapshot())::text::bigint as writing,
  (
    select coalesce(sum(kept.calls), 0)
    from pg_stat_statements as kept
    join pg_database as held on held.oid = kept.dbid
    where held.datname = :database::text
  )::bigint as statements
