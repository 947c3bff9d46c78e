{{/* URL at which the garden's API server reaches admission. */}}
{{- define "gardener.admissionUrl" -}}
{{ .Values.admission.url | default (printf "https://gardener-admission.%s.svc:%v" .Release.Namespace .Values.admission.service.port) }}
{{- end -}}

{{- define "gardener.authorizerUrl" -}}
{{ .Values.admission.seedAuthorizer.url | default (printf "https://gardener-admission.%s.svc:%v" .Release.Namespace .Values.admission.seedAuthorizer.port) }}
{{- end -}}
