{{/* Where the garden's API server reaches admission. */}}
{{- define "gardener.admissionUrl" -}}
{{ .Values.admission.url | default (printf "https://gardener-admission.%s.svc:%v" .Release.Namespace .Values.admission.service.port) }}
{{- end -}}
