{{/* The alerts, as a YAML list; README.md has a paragraph on each. */}}
{{- define "tenantry.alerts" -}}
{{- $rule := .Values.observability.prometheusRule -}}
{{- $full := include "tenantry.fullname" . -}}
{{- $api := printf "namespace=\"%s\",pod=~\"%s-api-.+\"" .Release.Namespace $full -}}
{{- $worker := printf "namespace=\"%s\",pod=~\"%s-worker-.+\"" .Release.Namespace $full -}}
{{- $pgbouncer := printf "namespace=\"%s\",pod=~\"%s-pgbouncer-.+\"" .Release.Namespace $full -}}
- alert: TenantryApiMissing
  expr: absent(tenantry_build_info{ {{- $api -}} })
  for: 5m
  severity: critical
  summary: No pod of the API is seen.
- alert: TenantryApiErrors
  expr: >-
    sum(rate(tenantry_http_requests_total{ {{- $api }},route!~"/readyz|/healthz|/metrics",status=~"5.."}[5m]))
    / sum(rate(tenantry_http_requests_total{ {{- $api }},route!~"/readyz|/healthz|/metrics"}[5m])) > {{ $rule.apiErrorRatio }}
  for: 10m
  severity: critical
  summary: The API answers too many requests with a 5xx.
- alert: TenantryApiSlow
  expr: >-
    histogram_quantile(0.99, sum by (le)
    (rate(tenantry_http_request_duration_seconds_bucket{ {{- $api }},method="POST",route="/v1/runs"}[5m]))) > 1
  for: 10m
  severity: warning
  summary: Starting a run takes longer than a second for one in a hundred.
{{- if (include "tenantry.pools" .) }}
- alert: TenantryWorkersMissing
  expr: absent(tenantry_build_info{ {{- $worker -}} })
  for: 5m
  severity: critical
  summary: No worker is seen, nothing is executed.
- alert: TenantryDatabaseAway
  expr: max(tenantry_database_away{ {{- $worker -}} }) > 0
  for: 2m
  severity: critical
  summary: A worker cannot reach the database.
- alert: TenantryQueueOld
  expr: max(tenantry_queue_oldest_age_seconds{ {{- $worker -}} }) > {{ $rule.queueAgeSeconds }}
  for: 5m
  severity: warning
  summary: Work has been due for too long.
- alert: TenantryQueueDeep
  expr: max(tenantry_queue_depth{ {{- $worker -}} }) >= 10000
  for: 15m
  severity: warning
  summary: Ten thousand jobs or runs are due, which is as far as is counted.
- alert: TenantryWorkUnserved
  expr: >-
    max(tenantry_queue_depth{ {{- $worker -}} })
    - sum(max by (tenantry_pool) (tenantry_queue_served_depth{ {{- $worker -}} })) > 0
  for: 15m
  severity: warning
  summary: Work is due of a workflow or version that no worker serves.
- alert: TenantryWorkersFull
  expr: sum(tenantry_jobs_in_flight{ {{- $worker -}} }) / sum(tenantry_worker_concurrency{ {{- $worker -}} }) > 0.95
  for: 30m
  severity: warning
  summary: All workers have been full for half an hour.
- alert: TenantryJobsFailing
  expr: >-
    sum(rate(tenantry_jobs_finished_total{ {{- $worker }},outcome="failed"}[15m]))
    / sum(rate(tenantry_jobs_finished_total{ {{- $worker -}} }[15m])) > {{ $rule.jobFailureRatio }}
  for: 15m
  severity: warning
  summary: Too many attempts fail.
- alert: TenantryLeasesExpired
  expr: sum(increase(tenantry_leases_expired_total{ {{- $worker -}} }[15m])) > 0
  for: 0m
  severity: warning
  summary: Workers died or hung with jobs in hand, which others have taken over.
- alert: TenantryOutcomesLost
  expr: sum(increase(tenantry_jobs_finished_total{ {{- $worker }},outcome="lost"}[15m])) > 0
  for: 0m
  severity: critical
  summary: A worker could not store what a stage came to.
{{- end }}
{{- if ne .Values.migrations.mode "none" }}
- alert: TenantryMigrationFailed
  expr: kube_job_status_failed{namespace="{{ .Release.Namespace }}",job_name=~"{{ $full }}-migrate.*"} > 0
  for: 0m
  severity: critical
  summary: A migration failed; the release before goes on serving.
{{- end }}
{{- if and .Values.pgbouncer.enabled .Values.pgbouncer.exporter.enabled }}
- alert: TenantryPgBouncerWaiting
  expr: sum(pgbouncer_pools_client_waiting_connections{ {{- $pgbouncer -}} }) > 0
  for: 2m
  severity: warning
  summary: Clients wait for server connections.
- alert: TenantryPgBouncerFull
  expr: >-
    max by (pod) (sum by (pod) (pgbouncer_pools_server_active_connections{ {{- $pgbouncer -}} }))
    / {{ .Values.pgbouncer.maxDbConnections }} > 0.9
  for: 10m
  severity: warning
  summary: A PgBouncer uses nearly all the server connections that it may.
{{- end }}
{{- end -}}
