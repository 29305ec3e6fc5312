{{/* Names, labels and what all Pods have in common. */}}

{{- define "faultline.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Of all objects; (dict "root" $ "component" "api"). */}}
{{- define "faultline.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{ include "faultline.selector" . }}
{{- end -}}

{{- define "faultline.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- with .pool }}
faultline/pool: {{ . }}
{{- end }}
{{- end -}}

{{- define "faultline.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ default $.Chart.AppVersion .tag }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* One variable from a Secret; (dict "name" … "secret" … "key" … "optional" false). */}}
{{- define "faultline.secret" -}}
- name: {{ .name }}
  valueFrom:
    secretKeyRef: {name: {{ .secret }}, key: {{ .key }}{{ if .optional }}, optional: true{{ end }}}
{{- end -}}

{{/* Its own database URL and nobody else's; (dict "root" $ "login" "api" "own" …), own: of a pool. */}}
{{- define "faultline.database" -}}
{{- $login := get .root.Values.database .login -}}
{{- $own := default dict .own -}}
{{- $secret := coalesce $own.secret $login.secret .root.Values.database.existingSecret -}}
{{ include "faultline.secret" (dict "name" "FAULTLINE_DATABASE_URL" "secret" $secret "key" (default $login.key $own.key)) }}
- name: FAULTLINE_SCHEMA
  value: {{ .root.Values.schema | quote }}
{{- end -}}

{{/* What every component may reach, as egress rules: names, the database, and what was added. */}}
{{- define "faultline.egress" -}}
{{- with .Values.networkPolicy -}}
- ports:
    - {protocol: UDP, port: 53}
    - {protocol: TCP, port: 53}
- ports:
    {{- range .databasePorts }}
    - {protocol: TCP, port: {{ . }}}
    {{- end }}
  {{- with .databaseTo }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- with .extraEgress }}
{{ toYaml . }}
{{- end }}
{{- end -}}
{{- end -}}

{{/* Without root, without writing to its image, without a token of the cluster. */}}
{{- define "faultline.podSecurity" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "faultline.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{/* What a Pod has besides its container; (dict "root" $ "own" …), own: where a pool runs. */}}
{{- define "faultline.podSettings" -}}
{{- $own := default dict .own -}}
{{- with .root -}}
{{ include "faultline.podSecurity" . }}
{{- with .Values.serviceAccountName }}
serviceAccountName: {{ . }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- range $key := list "nodeSelector" "tolerations" "affinity" }}
{{- $said := index $own $key }}
{{- if kindIs "invalid" $said }}{{ $said = get $.root.Values $key }}{{ end }}
{{- with $said }}
{{ $key }}:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
volumes:
  - name: tmp
    emptyDir: {sizeLimit: {{ .Values.tmpSize }}}
  {{- with .Values.extraVolumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}
{{- end -}}

{{/*
What its container has besides its arguments, variables and probes; (dict "root" $ "envFrom" …),
envFrom: of a pool.
*/}}
{{- define "faultline.containerSettings" -}}
{{- $envFrom := concat .root.Values.extraEnvFrom (default list .envFrom) -}}
{{- with .root -}}
image: {{ include "faultline.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{ include "faultline.containerSecurity" . }}
volumeMounts:
  - {name: tmp, mountPath: /tmp}
  {{- with .Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with $envFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
{{- end -}}
