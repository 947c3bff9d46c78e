{{- /* The name of the seed; empty if no value has it. */}}
{{- define "provider-local.seed" -}}
{{- .Values.seedName | default (dig "seed" "name" "" (.Values.gardener | default dict)) -}}
{{- end }}

{{- /* Addresses that provider-local gives to Services of gateways of this seed. Without an address, it gives none. */}}
{{- define "provider-local.addresses" -}}
{{- $own := get .Values.seeds (include "provider-local.seed" .) | default dict -}}
address: {{ $own.loadBalancerIp | default .Values.loadBalancerIp | quote }}
further: {{ $own.furtherLoadBalancerIps | default .Values.furtherLoadBalancerIps | toJson }}
ipv6: {{ $own.ipv6LoadBalancerIps | default .Values.ipv6LoadBalancerIps | toJson }}
{{- end }}
