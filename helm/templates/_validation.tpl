{{/* What cannot work is refused here, with what to do about it; tests/helm provokes each of these texts. */}}
{{- define "tenantry.validate" -}}
{{- include "tenantry.validateBasics" . -}}
{{- include "tenantry.validateLogins" . -}}
{{- include "tenantry.validateDrain" . -}}
{{- include "tenantry.validateConnections" . -}}
{{- include "tenantry.validateScaling" . -}}
{{- include "tenantry.validateDoors" . -}}
{{- end -}}

{{- define "tenantry.validateBasics" -}}
{{- $v := .Values -}}
{{- if not $v.workflows -}}
{{- fail "workflows is required: the registry of your workflows in the image, such as shop:registry." -}}
{{- end -}}
{{- if gt (mul 3 $v.lease.heartbeatSeconds | int) (int $v.lease.staleThresholdSeconds) -}}
{{- fail (printf "lease: 3 x heartbeatSeconds (%d) must not exceed staleThresholdSeconds (%d): two heartbeats may fail." (mul 3 $v.lease.heartbeatSeconds | int) (int $v.lease.staleThresholdSeconds)) -}}
{{- end -}}
{{- $own := include "tenantry.ownSettings" . | fromYamlArray -}}
{{- range $name, $_ := $v.settings -}}
{{- if has $name $own -}}
{{- fail (printf "settings.%s: the chart sets this one from a value of its own; look for it in the README." $name) -}}
{{- end -}}
{{- end -}}
{{- range $pool, $settings := $v.worker.pools -}}
{{- range $name, $_ := (default dict $settings).settings -}}
{{- if has $name $own -}}
{{- fail (printf "worker.pools.%s.settings.%s: the chart sets this one from a value of its own; look for it in the README." $pool $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and $v.jwt.jwksUrl (not (and $v.jwt.issuer $v.jwt.audience)) -}}
{{- fail "jwt.issuer and jwt.audience are required with jwt.jwksUrl: a token of somebody else's would be good otherwise." -}}
{{- end -}}
{{- if and $v.operator.enabled (not $v.operator.tokenSecret.name) -}}
{{- fail "operator.tokenSecret.name is required with operator.enabled: a Secret with the operator's token." -}}
{{- end -}}
{{- if and $v.helmTest.enabled $v.helmTest.run.workflow (not $v.helmTest.run.apiKeySecret) -}}
{{- fail "helmTest.run.apiKeySecret is required with helmTest.run.workflow: a Secret with an API key of a tenant for tests." -}}
{{- end -}}
{{- end -}}

{{/* Settings that the chart gives itself, without their prefix. */}}
{{- define "tenantry.ownSettings" -}}
[DATABASE_URL, DATABASE_PASSWORD, DISPATCHER_DATABASE_URL, DISPATCHER_DATABASE_PASSWORD, DIRECT_DATABASE_URL, DIRECT_DATABASE_PASSWORD,
OPERATOR_DATABASE_URL, OPERATOR_DATABASE_PASSWORD, OPERATOR_TOKEN, HOST, PORT, WORKFLOWS, WORKER_CONCURRENCY, WORKER_HTTP_PORT,
STALE_LEASE_THRESHOLD, HEARTBEAT_INTERVAL, ABORT_GRACE, SHUTDOWN_GRACE, PREPARED_STATEMENTS, POOL_SIZE, POOL_MAX_LIFETIME,
JWT_ISSUER, JWT_AUDIENCE, JWT_JWKS_URL, JWT_TENANT_CLAIM, LOG_FORMAT, LOG_LEVEL, TRACE_TENANT_HEADER]
{{- end -}}

{{- define "tenantry.validateLogins" -}}
{{- $v := .Values -}}
{{- $used := include "tenantry.logins" . | fromYamlArray -}}
{{- if ne $v.migrations.mode "none" -}}
{{- $used = append $used "owner" -}}
{{- end -}}
{{- range $used -}}
{{- $login := index $v.database.logins . -}}
{{- if not $login.existingSecret -}}
{{- if eq . "owner" -}}
{{- fail "database.logins.owner.existingSecret is required: the Secret of the login that migrates. Create it before the release, or set migrations.mode=none and run `tenantry db migrate` yourself." -}}
{{- end -}}
{{- fail (printf "database.logins.%s.existingSecret is required: a Secret with the password of %s under the key %q. The chart makes no secrets." . $login.username $login.passwordKey) -}}
{{- end -}}
{{- if and (not $login.urlKey) (not $v.database.host) -}}
{{- fail "database.host is required: the host of Postgres (or a whole URL in every login's Secret, named by urlKey)." -}}
{{- end -}}
{{- if and (eq . "owner") (not $login.urlKey) (not $login.username) -}}
{{- fail "database.logins.owner.username is required: a member of tenantry_owner, or a superuser." -}}
{{- end -}}
{{- if and $login.urlKey $v.pgbouncer.enabled (ne . "owner") (not $v.pgbouncer.userlistSecret) -}}
{{- fail (printf "pgbouncer.userlistSecret is required with database.logins.%s.urlKey: no password can be taken out of a URL. Give the password by passwordKey, or set pgbouncer.enabled=false." .) -}}
{{- end -}}
{{- end -}}
{{- if and $v.pgbouncer.enabled (not $v.database.host) -}}
{{- fail "database.host is required with pgbouncer.enabled: where PgBouncer finds Postgres." -}}
{{- end -}}
{{- if and (hasPrefix "verify-" $v.database.sslMode) (not $v.database.ca.existingSecret) $v.database.host -}}
{{- fail (printf "database.ca.existingSecret is required for database.sslMode=%s: a Secret with the authority of Postgres. Without one only sslMode=require is possible, which encrypts and does not know whom it talks to." $v.database.sslMode) -}}
{{- end -}}
{{- if and $v.pgbouncer.enabled $v.pgbouncer.exporter.enabled (not $v.pgbouncer.exporter.existingSecret) -}}
{{- fail "pgbouncer.exporter.existingSecret is required with pgbouncer.exporter.enabled: a Secret with the password of pgbouncer_stats." -}}
{{- end -}}
{{- end -}}

{{- define "tenantry.validateDrain" -}}
{{- $v := .Values -}}
{{- $need := add $v.api.drain.preStopSeconds $v.api.drain.shutdownGraceSeconds 5 | int -}}
{{- if le (int $v.api.terminationGracePeriodSeconds) $need -}}
{{- fail (printf "api.terminationGracePeriodSeconds (%d) must exceed drain.preStopSeconds + drain.shutdownGraceSeconds + 5 (%d), or requests are cut off." (int $v.api.terminationGracePeriodSeconds) $need) -}}
{{- end -}}
{{- range $name := include "tenantry.pools" . | fromYamlArray -}}
{{- $pool := include "tenantry.pool" (list $ $name) | fromYaml -}}
{{- /* 10: what the worker allows itself for cancelled bodies, last writes and closing its pools, and a second. */ -}}
{{- $need := add $pool.drain.preStopSeconds $pool.drain.shutdownGraceSeconds $pool.drain.abortGraceSeconds 10 | int -}}
{{- if lt (int $pool.terminationGracePeriodSeconds) $need -}}
{{- fail (printf "worker.pools.%s.terminationGracePeriodSeconds (%d) must be at least drain.preStopSeconds + drain.shutdownGraceSeconds + drain.abortGraceSeconds + 10 (%d), or the worker is killed before it has given its jobs back." $name (int $pool.terminationGracePeriodSeconds) $need) -}}
{{- end -}}
{{- end -}}
{{- if $v.pgbouncer.enabled -}}
{{- $need := add $v.database.poolMaxLifetimeSeconds $v.pgbouncer.drain.preStopSeconds 5 | int -}}
{{- if le (int $v.pgbouncer.terminationGracePeriodSeconds) $need -}}
{{- fail (printf "pgbouncer.terminationGracePeriodSeconds (%d) must exceed database.poolMaxLifetimeSeconds + pgbouncer.drain.preStopSeconds + 5 (%d), or PgBouncer is killed while clients are still connected." (int $v.pgbouncer.terminationGracePeriodSeconds) $need) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "tenantry.validateConnections" -}}
{{- $v := .Values -}}
{{- $p := $v.pgbouncer -}}
{{- $apiPods := ternary $v.api.autoscaling.maxReplicas $v.api.replicas $v.api.autoscaling.enabled -}}
{{- $clients := mul $apiPods (add $v.api.poolSize (ternary 2 0 $v.operator.enabled)) -}}
{{- range $name := include "tenantry.pools" . | fromYamlArray -}}
{{- $pool := include "tenantry.pool" (list $ $name) | fromYaml -}}
{{- /* A worker has eight connections for work, one that finds tenants and one for heartbeats. */ -}}
{{- $clients = add $clients (mul 10 (ternary $pool.replicas $pool.autoscaling.maxReplicas (eq $pool.autoscaling.type "none"))) -}}
{{- end -}}
{{- if $p.enabled -}}
{{- $room := mul $p.maxClientConn $p.replicas -}}
{{- if gt $clients $room -}}
{{- fail (printf "pgbouncer.maxClientConn x pgbouncer.replicas (%d) is less than the connections that API and workers may open (%d)." $room $clients) -}}
{{- end -}}
{{- $tag := regexFind "^v?[0-9]+\\.[0-9]+(\\.[0-9]+)?" $p.image.tag | trimPrefix "v" -}}
{{- if and $tag $v.database.preparedStatements (not $p.image.digest) (semverCompare "<1.21.0-0" $tag) -}}
{{- fail (printf "pgbouncer.image.tag %s cannot keep prepared statements, which needs 1.21: take 1.25.2 or newer, or set database.preparedStatements=false." $p.image.tag) -}}
{{- end -}}
{{- end -}}
{{- if $v.database.maxConnections -}}
{{- $servers := ternary (mul $p.replicas $p.maxDbConnections) $clients $p.enabled -}}
{{- /* Three are kept for superusers by default, two are for a migration. */ -}}
{{- if gt (add $servers 5 | int) (int $v.database.maxConnections) -}}
{{- fail (printf "database.maxConnections (%d) is less than the connections that this release may open (%d) and 5 for migrations and superusers." (int $v.database.maxConnections) (int $servers)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "tenantry.validateScaling" -}}
{{- $v := .Values -}}
{{- if and $v.api.autoscaling.enabled (gt (int $v.api.autoscaling.minReplicas) (int $v.api.autoscaling.maxReplicas)) -}}
{{- fail "api.autoscaling.minReplicas must not exceed maxReplicas." -}}
{{- end -}}
{{- include "tenantry.validatePdb" (list "api.pdb" $v.api.pdb) -}}
{{- if $v.pgbouncer.enabled -}}
{{- include "tenantry.validatePdb" (list "pgbouncer.pdb" $v.pgbouncer.pdb) -}}
{{- end -}}
{{- $staying := 0 -}}
{{- range $name := include "tenantry.pools" . | fromYamlArray -}}
{{- $pool := include "tenantry.pool" (list $ $name) | fromYaml -}}
{{- $auto := $pool.autoscaling -}}
{{- $staying = add $staying (ternary $pool.replicas $auto.minReplicas (eq $auto.type "none")) -}}
{{- include "tenantry.validatePdb" (list (printf "worker.pools.%s.pdb" $name) $pool.pdb) -}}
{{- if and (ne $auto.type "none") (gt (int $auto.minReplicas) (int $auto.maxReplicas)) -}}
{{- fail (printf "worker.pools.%s.autoscaling.minReplicas must not exceed maxReplicas." $name) -}}
{{- end -}}
{{- if and (eq $auto.type "hpa") (lt (int $auto.minReplicas) 1) -}}
{{- fail (printf "worker.pools.%s.autoscaling.minReplicas must be at least 1 with type hpa: only KEDA goes to zero." $name) -}}
{{- end -}}
{{- if and (eq $auto.type "keda") (not $auto.keda.serverAddress) -}}
{{- fail (printf "worker.pools.%s.autoscaling.keda.serverAddress is required with type keda: the address of Prometheus, such as http://prometheus.monitoring.svc:9090." $name) -}}
{{- end -}}
{{- end -}}
{{- if and (include "tenantry.pools" .) (eq (int $staying) 0) -}}
{{- fail "worker.pools: at least one pool must keep a pod: the depth of the queue is told by workers, so nothing would scale up from zero." -}}
{{- end -}}
{{- end -}}

{{- define "tenantry.validatePdb" -}}
{{- $pdb := index . 1 -}}
{{- if and $pdb.enabled (not (kindIs "invalid" $pdb.minAvailable)) (not (kindIs "invalid" $pdb.maxUnavailable)) -}}
{{- fail (printf "%s: minAvailable and maxUnavailable exclude each other." (index . 0)) -}}
{{- end -}}
{{- end -}}

{{- define "tenantry.validateDoors" -}}
{{- $api := .Values.api -}}
{{- if and $api.ingress.enabled $api.httpRoute.enabled -}}
{{- fail "api.ingress and api.httpRoute exclude each other: choose one door." -}}
{{- end -}}
{{- if and $api.ingress.enabled (not $api.ingress.hosts) -}}
{{- fail "api.ingress.hosts is required with api.ingress.enabled." -}}
{{- end -}}
{{- if and $api.httpRoute.enabled (not $api.httpRoute.parentRefs) -}}
{{- fail "api.httpRoute.parentRefs is required with api.httpRoute.enabled: the Gateway that it belongs to." -}}
{{- end -}}
{{- end -}}
