{{/* (dict "root" $ "component" "api" "port" 8000) */}}
{{- define "faultline.service" -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ include "faultline.fullname" .root }}-{{ .component }}
  labels:
    {{- include "faultline.labels" (dict "root" .root "component" .component) | nindent 4 }}
spec:
  type: ClusterIP
  selector:
    {{- include "faultline.selector" (dict "root" .root "component" .component) | nindent 4 }}
  ports:
    - {name: http, port: {{ .port }}, targetPort: http, protocol: TCP}
{{- end -}}
