{{/* The address of the database for a login, without a password: (list $ "api"). */}}
{{- define "tenantry.databaseUrl" -}}
{{- $root := index . 0 -}}
{{- $name := index . 1 -}}
{{- $database := $root.Values.database -}}
{{- $pgbouncer := $root.Values.pgbouncer -}}
{{- $user := (index $database.logins $name).username | urlquery | replace "+" "%20" -}}
{{- $host := $database.host -}}
{{- $port := $database.port -}}
{{- $query := printf "sslmode=%s" $database.sslMode -}}
{{- if $database.ca.existingSecret -}}
{{- $query = printf "%s&sslrootcert=/etc/tenantry/database-ca/ca.crt" $query -}}
{{- end -}}
{{- if eq $name "owner" -}}
{{- $host = default $host $database.direct.host -}}
{{- $port = default $port $database.direct.port -}}
{{- else if $pgbouncer.enabled -}}
{{- $host = printf "%s-pgbouncer" (include "tenantry.fullname" $root) -}}
{{- $port = $pgbouncer.port -}}
{{- $query = ternary "sslmode=verify-full&sslrootcert=/etc/tenantry/pgbouncer-ca/ca.crt" "sslmode=disable" (ne $pgbouncer.tls.existingSecret "") -}}
{{- end -}}
{{- printf "postgresql://%s@%s:%d/%s?%s" $user $host (int $port) ($database.name | urlquery | replace "+" "%20") $query -}}
{{- end -}}

{{/* The settings of a login, as YAML of a map: (list $ "api" "DATABASE"). */}}
{{- define "tenantry.loginSettings" -}}
{{- $root := index . 0 -}}
{{- $name := index . 1 -}}
{{- $setting := index . 2 -}}
{{- if (index $root.Values.database.logins $name).urlKey -}}
TENANTRY_{{ $setting }}_URL_FILE: /etc/tenantry/logins/{{ $name }}/url
{{- else -}}
TENANTRY_{{ $setting }}_URL: {{ include "tenantry.databaseUrl" (list $root $name) | quote }}
TENANTRY_{{ $setting }}_PASSWORD_FILE: /etc/tenantry/logins/{{ $name }}/password
{{- end -}}
{{- end -}}

{{/* What API and worker share, as YAML of a map: (list $ "component"). */}}
{{- define "tenantry.sharedSettings" -}}
{{- $root := index . 0 -}}
{{- $lease := $root.Values.lease -}}
TENANTRY_HOST: {{ $root.Values.listenAddress | quote }}
TENANTRY_LOG_FORMAT: {{ $root.Values.logging.format }}
TENANTRY_LOG_LEVEL: {{ $root.Values.logging.level }}
TENANTRY_STALE_LEASE_THRESHOLD: {{ printf "%ds" (int $lease.staleThresholdSeconds) }}
TENANTRY_HEARTBEAT_INTERVAL: {{ printf "%ds" (int $lease.heartbeatSeconds) }}
TENANTRY_PREPARED_STATEMENTS: {{ ternary "on" "off" $root.Values.database.preparedStatements | quote }}
TENANTRY_POOL_MAX_LIFETIME: {{ printf "%ds" (int $root.Values.database.poolMaxLifetimeSeconds) }}
{{- range $name, $value := $root.Values.settings }}
TENANTRY_{{ $name }}: {{ include "tenantry.text" $value | quote }}
{{- end }}
{{- with $root.Values.observability.otlp }}
{{- if .endpoint }}
OTEL_EXPORTER_OTLP_ENDPOINT: {{ .endpoint | quote }}
OTEL_EXPORTER_OTLP_PROTOCOL: {{ .protocol | quote }}
{{- if .tenantHeader }}
TENANTRY_TRACE_TENANT_HEADER: {{ .tenantHeader | quote }}
{{- end }}
{{- end }}
{{- end }}
OTEL_SERVICE_NAME: {{ printf "tenantry-%s" (index . 1) }}
{{- end -}}

{{/* The environment of a container from a map of plain texts and the operator's extraEnv, sorted: (list $settings $extraEnv). */}}
{{- define "tenantry.env" -}}
{{- $extra := index . 1 -}}
{{- range $name, $value := mergeOverwrite (deepCopy (index . 0)) (deepCopy $extra) }}
- name: {{ $name }}
  {{- if kindIs "map" $value }}
  valueFrom:
    {{- toYaml $value | nindent 4 }}
  {{- else }}
  value: {{ include "tenantry.text" $value | quote }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* Exporter headers and names of pod and node, which need valueFrom: (list $). */}}
{{- define "tenantry.telemetryEnv" -}}
{{- $root := index . 0 -}}
{{- with $root.Values.observability.otlp.headersSecret }}
{{- if .name }}
OTEL_EXPORTER_OTLP_HEADERS:
  secretKeyRef: {name: {{ .name }}, key: {{ .key | quote }}}
{{- end }}
{{- end }}
{{- end -}}

{{/* A value as text: a large whole number would be written with an exponent. */}}
{{- define "tenantry.text" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) -}}
{{- printf "%d" (int64 .) -}}
{{- else -}}
{{- toString . -}}
{{- end -}}
{{- end -}}
