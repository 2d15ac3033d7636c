-- name: reset
-- Forget what was counted so far.
select pg_stat_statements_reset()

-- name: statements
-- Where the server's time went, statements inside functions included; milliseconds, planning apart.
select
  kept.calls::int as calls, kept.total_exec_time as exec_ms, kept.total_plan_time as plan_ms, kept.wal_bytes::float8 as wal_bytes,
  regexp_replace(left(kept.query, 400), '\s+', ' ', 'g') as text
from pg_stat_statements as kept
join pg_database as held on held.oid = kept.dbid
where held.datname = :database::text and kept.calls > 1
order by kept.total_exec_time + kept.total_plan_time desc
limit :top::int

-- name: tables
-- How each table was written, and how much of its updates stayed within the page without touching an index.
select
  stat.relname as table, stat.n_tup_ins::int as inserted, stat.n_tup_upd::int as updated, stat.n_tup_hot_upd::int as hot,
  stat.n_tup_del::int as deleted,
  (select count(*) from pg_index as held where held.indrelid = stat.relid)::int as indexes
from pg_stat_user_tables as stat
where stat.n_tup_ins + stat.n_tup_upd + stat.n_tup_del > 0
order by stat.n_tup_ins + stat.n_tup_upd + stat.n_tup_del desc
