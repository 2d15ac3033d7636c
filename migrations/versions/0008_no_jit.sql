-- Before Postgres 18 a kind of plan that is switched off costs 10^10, and what costs more than 10^5 is compiled (jit is on by
-- default): a claim of one job took seconds. The functions that switch plans off have short statements: none is worth it.
alter function tenantry.write_changes_v1(uuid, uuid[], json, json, json, json, json, json, json, json, json) set jit = off;
alter function tenantry.settle_expected_v1(
  uuid, json, timestamptz, json, uuid[], json, json, json, json, json, json, json, json
) set jit = off;
alter function tenantry.step_ledger_v1(uuid, json, boolean) set jit = off;
alter function tenantry.lock_leases_v1(uuid, json, boolean) set jit = off;
alter function tenantry.claim_jobs_v1(uuid, json, int) set jit = off;
alter function tenantry.claim_runs_v1(uuid, json, int) set jit = off;
alter function tenantry.due_tenants_v1(json, uuid, int) set jit = off;
alter function tenantry.due_tenants_v2(json, uuid, int) set jit = off;
alter function tenantry.due_tenants_from_v1(json, uuid, int, json) set jit = off;
