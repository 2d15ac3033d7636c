{{/* Names. 40 characters, so that every suffix of ours fits into a DNS label. */}}
{{- define "tenantry.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "tenantry.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "tenantry.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "tenantry.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* What selects a component's pods: (list $ "api") or (list $ "worker" "pool"). */}}
{{- define "tenantry.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ include "tenantry.name" $root }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- if gt (len .) 2 }}
tenantry/pool: {{ index . 2 }}
{{- end }}
{{- end -}}

{{- define "tenantry.labels" -}}
{{- $root := index . 0 -}}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "tenantry.selector" . }}
app.kubernetes.io/version: {{ default $root.Chart.AppVersion $root.Values.image.tag | trunc 63 | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
app.kubernetes.io/part-of: tenantry
{{- with $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The common annotations and those of the second argument, as a part of metadata: (list $ $more). Empty when there are none. */}}
{{- define "tenantry.annotations" -}}
{{- $root := index . 0 -}}
{{- $all := mergeOverwrite (deepCopy $root.Values.commonAnnotations) (deepCopy (default dict (index . 1))) -}}
{{- if $all }}
  annotations:
    {{- toYaml $all | nindent 4 }}
{{- end }}
{{- end -}}

{{/* An image: (list $ .Values.image "default tag"). */}}
{{- define "tenantry.image" -}}
{{- $root := index . 0 -}}
{{- $image := index . 1 -}}
{{- $name := printf "%s/%s" (default $image.registry $root.Values.global.imageRegistry) $image.repository -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $name $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name (default (index . 2) $image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "tenantry.ownImage" -}}
{{- include "tenantry.image" (list . .Values.image .Chart.AppVersion) -}}
{{- end -}}

{{/* The pod settings of a component, the chart's own overlaid with those of the arguments, as YAML: (list $ $a $b). */}}
{{- define "tenantry.podSettings" -}}
{{- $root := index . 0 -}}
{{- $all := deepCopy $root.Values.pod -}}
{{- range rest . -}}
{{- $all = mergeOverwrite $all (deepCopy (default dict .)) -}}
{{- end -}}
{{- toYaml $all -}}
{{- end -}}

{{/* The names of the pools that are wanted, sorted, as a YAML list; empty when there is none. */}}
{{- define "tenantry.pools" -}}
{{- range $name := keys .Values.worker.pools | sortAlpha -}}
{{- $pool := include "tenantry.pool" (list $ $name) | fromYaml -}}
{{- if $pool.enabled }}
- {{ $name }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* A worker pool's settings, `worker` overlaid with the pool's own, as YAML: (list $ "pool"). */}}
{{- define "tenantry.pool" -}}
{{- $root := index . 0 -}}
{{- $all := mergeOverwrite (omit (deepCopy $root.Values.worker) "pools") (deepCopy (default dict (index $root.Values.worker.pools (index . 1)))) -}}
{{- toYaml $all -}}
{{- end -}}

{{/* The pod's metadata: (list $ $pod $annotations "component" "pool"…). */}}
{{- define "tenantry.podMetadata" -}}
{{- $root := index . 0 -}}
{{- $pod := index . 1 -}}
{{- $annotations := mergeOverwrite (deepCopy $root.Values.commonAnnotations) (deepCopy $pod.annotations) (index . 2) -}}
labels:
  {{- include "tenantry.labels" (concat (list $root) (slice . 3)) | nindent 2 }}
  {{- with $pod.labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with $annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/*
What every pod of the chart has, hooks and tests included: (list $ $pod "component" "pool"…).
Service links would add variables such as TENANTRY_PORT for a release called tenantry, and a setting has that name.
*/}}
{{- define "tenantry.podSpec" -}}
{{- $root := index . 0 -}}
{{- $pod := index . 1 -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with concat $root.Values.global.imagePullSecrets $root.Values.image.pullSecrets | uniq }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  {{- toYaml $pod.securityContext | nindent 2 }}
{{- with $pod.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $pod.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with $pod.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $pod.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $pod.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if kindIs "slice" $pod.topologySpreadConstraints }}
{{- with $pod.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- else if eq $pod.topologySpreadConstraints "default" }}
topologySpreadConstraints:
  {{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
  - topologyKey: {{ . }}
    maxSkew: 1
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "tenantry.selector" (concat (list $root) (slice $ 2)) | nindent 8 }}
    matchLabelKeys: [pod-template-hash]
  {{- end }}
{{- end }}
{{- end -}}

{{/* A container's security context and resources: (list $pod $resources). */}}
{{- define "tenantry.container" -}}
securityContext:
  {{- toYaml (index . 0).containerSecurityContext | nindent 2 }}
{{- with index . 1 }}
resources:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Mounts and volumes of every pod: a place to write, the logins' secrets, CAs, what the operator adds: (list $ $pod $logins). */}}
{{- define "tenantry.mounts" -}}
{{- $root := index . 0 -}}
{{- $pod := index . 1 -}}
{{- $logins := index . 2 -}}
- name: tmp
  mountPath: /tmp
{{- range $logins }}
- name: login-{{ . }}
  mountPath: /etc/tenantry/logins/{{ . }}
  readOnly: true
{{- end }}
{{- if $logins }}
{{- if $root.Values.database.ca.existingSecret }}
- name: database-ca
  mountPath: /etc/tenantry/database-ca
  readOnly: true
{{- end }}
{{- if and $root.Values.pgbouncer.enabled $root.Values.pgbouncer.tls.existingSecret (not (has "owner" $logins)) }}
- name: pgbouncer-ca
  mountPath: /etc/tenantry/pgbouncer-ca
  readOnly: true
{{- end }}
{{- end }}
{{- with $pod.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "tenantry.volumes" -}}
{{- $root := index . 0 -}}
{{- $pod := index . 1 -}}
{{- $logins := index . 2 -}}
- name: tmp
  emptyDir: {sizeLimit: {{ $pod.tmpSize }}}
{{- range $logins }}
{{- $login := index $root.Values.database.logins . }}
- name: login-{{ . }}
  secret:
    secretName: {{ $login.existingSecret }}
    defaultMode: 0440
    items:
      {{- if $login.urlKey }}
      - {key: {{ $login.urlKey | quote }}, path: url}
      {{- else }}
      - {key: {{ $login.passwordKey | quote }}, path: password}
      {{- end }}
{{- end }}
{{- if $logins }}
{{- if $root.Values.database.ca.existingSecret }}
- name: database-ca
  secret:
    secretName: {{ $root.Values.database.ca.existingSecret }}
    defaultMode: 0444
    items:
      - {key: {{ $root.Values.database.ca.key | quote }}, path: ca.crt}
{{- end }}
{{- if and $root.Values.pgbouncer.enabled $root.Values.pgbouncer.tls.existingSecret (not (has "owner" $logins)) }}
- name: pgbouncer-ca
  secret:
    secretName: {{ $root.Values.pgbouncer.tls.existingSecret }}
    defaultMode: 0444
    items:
      - {key: {{ $root.Values.pgbouncer.tls.caKey | quote }}, path: ca.crt}
{{- end }}
{{- end }}
{{- with $pod.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "tenantry.pullPolicy" -}}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end -}}

{{/* A PodDisruptionBudget's limits. */}}
{{- define "tenantry.pdbLimits" -}}
{{- if not (kindIs "invalid" .minAvailable) -}}
minAvailable: {{ .minAvailable }}
{{- else -}}
maxUnavailable: {{ kindIs "invalid" .maxUnavailable | ternary 1 .maxUnavailable }}
{{- end }}
{{- with .unhealthyPodEvictionPolicy }}
unhealthyPodEvictionPolicy: {{ . }}
{{- end }}
{{- end -}}
