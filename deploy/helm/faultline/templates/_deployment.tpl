{{/*
A component that runs on: its Deployment, its PodDisruptionBudget and, if asked for, its autoscaler.

(dict "root" $ "name" "api" "component" "api" "pool" "" "settings" … "login" "api" "args" (list …)
      "env" "…" "port" 8000 "portName" "http" "ready" "/health" "startupSeconds" 60
      "preStopSeconds" 5 "graceSeconds" 10)

A Pod is told to end by SIGTERM; what it then may take (its grace) and what comes on top (to leave
the Service first; to hand back, and to write that down) is all of terminationGracePeriodSeconds.
*/}}
{{- define "faultline.deployment" -}}
{{- $ := .root -}}
{{- $name := printf "%s-%s" (include "faultline.fullname" $) .name -}}
{{- $who := dict "root" $ "component" .component "pool" .pool -}}
{{- $scaling := default dict .settings.autoscaling -}}
{{- $keda := default dict .settings.keda -}}
{{- if and $scaling.enabled $keda.enabled -}}
{{- fail (printf "%s: choose autoscaling or keda, not both" .name) -}}
{{- end -}}
{{- range $key, $bounds := dict "autoscaling" $scaling "keda" $keda -}}
{{- if and $bounds.enabled (gt (int $bounds.minReplicas) (int $bounds.maxReplicas)) -}}
{{- fail (printf "%s: %s.minReplicas is more than its maxReplicas" $name $key) -}}
{{- end -}}
{{- end -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ $name }}
  labels:
    {{- include "faultline.labels" $who | nindent 4 }}
spec:
  {{- if not (or $scaling.enabled $keda.enabled) }}
  replicas: {{ .settings.replicas }}
  {{- end }}
  minReadySeconds: 5
  revisionHistoryLimit: 5
  strategy:
    type: RollingUpdate
    rollingUpdate: {maxSurge: 25%, maxUnavailable: 0}
  selector:
    matchLabels:
      {{- include "faultline.selector" $who | nindent 6 }}
  template:
    metadata:
      labels:
        {{- include "faultline.labels" $who | nindent 8 }}
        {{- with $.Values.podLabels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- with merge (deepCopy .settings.podAnnotations) $.Values.podAnnotations }}
      annotations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
    spec:
      {{- include "faultline.podSettings" (dict "root" $ "own" .settings) | nindent 6 }}
      terminationGracePeriodSeconds: {{ add .preStopSeconds .graceSeconds 20 }}
      {{- if $.Values.topologySpread }}
      topologySpreadConstraints:
        {{- range $key := list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
        - maxSkew: 1
          topologyKey: {{ $key }}
          whenUnsatisfiable: ScheduleAnyway
          labelSelector:
            matchLabels:
              {{- include "faultline.selector" $who | nindent 14 }}
        {{- end }}
      {{- end }}
      containers:
        - name: {{ .component }}
          {{- include "faultline.containerSettings" (dict "root" $ "envFrom" .settings.extraEnvFrom) | nindent 10 }}
          args:
            {{- toYaml .args | nindent 12 }}
          env:
            {{- include "faultline.database" (dict "root" $ "login" .login "own" .settings.database) | nindent 12 }}
            {{- with .env }}
            {{- . | nindent 12 }}
            {{- end }}
            {{- with concat $.Values.extraEnv .settings.extraEnv }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
          ports:
            - {name: {{ .portName }}, containerPort: {{ .port }}, protocol: TCP}
          # Until the app is imported; then: do its loops turn? A database that is away is no reason
          # to start it anew.
          startupProbe:
            httpGet: {path: /livez, port: {{ .portName }}}
            periodSeconds: 2
            timeoutSeconds: 5
            failureThreshold: {{ div .startupSeconds 2 }}
          livenessProbe:
            httpGet: {path: /livez, port: {{ .portName }}}
            periodSeconds: 10
            timeoutSeconds: 5
            failureThreshold: 6
          readinessProbe:
            httpGet: {path: {{ .ready }}, port: {{ .portName }}}
            periodSeconds: 5
            timeoutSeconds: 5
            failureThreshold: 2
          {{- if .preStopSeconds }}
          # So that nobody sends it requests any more when it is told to end.
          lifecycle:
            preStop:
              exec:
                command: [python, -c, "import time; time.sleep({{ .preStopSeconds }})"]
          {{- end }}
          resources:
            {{- toYaml .settings.resources | nindent 12 }}
{{- if .settings.podDisruptionBudget.enabled }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ $name }}
  labels:
    {{- include "faultline.labels" $who | nindent 4 }}
spec:
  maxUnavailable: {{ .settings.podDisruptionBudget.maxUnavailable }}
  # Pods that are not ready, because the database is away, keep no node from being drained.
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "faultline.selector" $who | nindent 6 }}
{{- end }}
{{- if $scaling.enabled }}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  name: {{ $name }}
  labels:
    {{- include "faultline.labels" $who | nindent 4 }}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: {{ $name }}}
  minReplicas: {{ $scaling.minReplicas }}
  maxReplicas: {{ $scaling.maxReplicas }}
  metrics:
    - type: Resource
      resource:
        name: cpu
        target: {type: Utilization, averageUtilization: {{ $scaling.targetCPUPercent }}}
  behavior:
    scaleDown: {stabilizationWindowSeconds: 300}
{{- end }}
{{- end -}}
