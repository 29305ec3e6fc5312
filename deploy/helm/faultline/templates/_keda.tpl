{{/*
A pool by what waits or runs, and how long the oldest waits: (dict "root" $ "name" "billing" "pool" …). The question is an
index scan with a bound, never a count over the jobs.
*/}}
{{- define "faultline.scaledObject" -}}
{{- $ := .root -}}
{{- if not .pool.queues -}}
{{- fail (printf "workers.pools %s: keda needs the names of its queues" .name) -}}
{{- end -}}
{{- $target := printf "%s-worker-%s" (include "faultline.fullname" $) .name -}}
{{- $from := printf "from %s.backlog(array['%s'])" $.Values.schema (join "','" .pool.queues) -}}
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata:
  name: {{ $target }}
  labels:
    {{- include "faultline.labels" (dict "root" $ "component" "worker" "pool" .name) | nindent 4 }}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: {{ $target }}}
  minReplicaCount: {{ .pool.keda.minReplicas }}
  maxReplicaCount: {{ .pool.keda.maxReplicas }}
  pollingInterval: {{ .pool.keda.pollingInterval }}
  cooldownPeriod: {{ .pool.keda.cooldownPeriod }}
  # While the database is away nobody knows what waits: as many as there are.
  fallback: {failureThreshold: 4, replicas: {{ max 1 .pool.keda.minReplicas }}, behavior: currentReplicas}
  triggers:
    - type: postgresql
      name: jobs
      metricType: AverageValue
      metadata:
        query: {{ printf "select jobs + running %s" $from | quote }}
        targetQueryValue: {{ .pool.keda.jobsPerReplica | quote }}
        activationTargetQueryValue: "0"
      authenticationRef: {name: {{ include "faultline.fullname" $ }}-keda}
    {{- if .pool.keda.oldestSeconds }}
    - type: postgresql
      name: oldest
      metricType: AverageValue
      metadata:
        query: {{ printf "select oldest_seconds %s" $from | quote }}
        targetQueryValue: {{ .pool.keda.oldestSeconds | quote }}
        activationTargetQueryValue: "0"
      authenticationRef: {name: {{ include "faultline.fullname" $ }}-keda}
    {{- end }}
{{- end -}}
