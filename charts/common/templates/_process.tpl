{{/*
All objects of one process: ServiceAccount, configuration, Deployment, PodDisruptionBudget, Service of its metrics, NetworkPolicy.

Takes a dictionary:
  root     the chart's root context
  name     of all objects, "gardener-scheduler"
  worker   as in "gardener worker NAME"
  values   of this process: replicas, resources, nodeSelector, tolerations, affinity, podAnnotations, podLabels, config
  config   the configuration file; "values.config" is merged over it
  secrets  a list of {name, secret, path, items}: Secrets to mount
  ports    a list of {name, port, from}: ports beside the port of health and metrics, and peers that may connect; no peers: all
  tag      of the image, if another than the chart's
  labels   more labels of Deployment and pods
  reaches  targets of labels networking.resources.gardener.cloud/to-<target> of its pods
*/}}
{{- define "common.process" -}}
{{- $root := .root -}}
{{- $config := mergeOverwrite (deepCopy .config) (deepCopy (default dict .values.config)) -}}
{{- $file := toYaml $config -}}
{{- $health := 2718 -}}
{{- $account := .values.serviceAccountName | default .name -}}
{{- $labels := include "common.labels" . -}}
{{- $select := include "common.select" . -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ $account }}
  namespace: {{ $root.Release.Namespace }}
  labels: {{- $labels | nindent 4 }}
automountServiceAccountToken: false
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ .name }}
  namespace: {{ $root.Release.Namespace }}
  labels: {{- $labels | nindent 4 }}
data:
  config.yaml: |
    {{- $file | nindent 4 }}
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ .name }}
  namespace: {{ $root.Release.Namespace }}
  labels:
    {{- $labels | nindent 4 }}
    {{- with .labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  replicas: {{ .values.replicas }}
  revisionHistoryLimit: {{ .values.revisionHistoryLimit | default 2 }}
  selector:
    matchLabels: {{- $select | nindent 6 }}
  strategy:
    type: RollingUpdate
    rollingUpdate: {maxSurge: 1, maxUnavailable: 0}
  template:
    metadata:
      labels:
        {{- $labels | nindent 8 }}
        {{- with .labels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
        {{- range .reaches }}
        networking.resources.gardener.cloud/to-{{ . }}: allowed
        {{- end }}
        {{- with .values.podLabels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      annotations:
        checksum/config: {{ $file | sha256sum }}
        {{- with .values.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      serviceAccountName: {{ $account }}
      automountServiceAccountToken: true
      {{- with $root.Values.priorityClassName }}
      priorityClassName: {{ . }}
      {{- end }}
      {{- with $root.Values.imagePullSecrets }}
      imagePullSecrets: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- /* Activities in flight get 10 s to end; another replica retries the others. */}}
      terminationGracePeriodSeconds: 30
      securityContext: {{- include "common.podSecurityContext" . | nindent 8 }}
      topologySpreadConstraints:
        {{- range $key := list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
        - topologyKey: {{ $key }}
          maxSkew: 1
          whenUnsatisfiable: ScheduleAnyway
          labelSelector:
            matchLabels: {{- $select | nindent 14 }}
        {{- end }}
      {{- with .values.nodeSelector }}
      nodeSelector: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .values.tolerations }}
      tolerations: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .values.affinity }}
      affinity: {{- toYaml . | nindent 8 }}
      {{- end }}
      containers:
        - name: {{ .worker }}
          {{- include "common.container" . | nindent 10 }}
          ports:
            - {name: health, containerPort: {{ $health }}}
            {{- range .ports }}
            - {name: {{ .name }}, containerPort: {{ .port }}}
            {{- end }}
          {{- if ne (toString .values.healthProbes) "false" }}
          startupProbe:
            httpGet: {path: /healthz, port: health}
            periodSeconds: 1
            timeoutSeconds: 5
            failureThreshold: 300
          readinessProbe:
            httpGet: {path: /readyz, port: health}
            periodSeconds: 5
            timeoutSeconds: 10
          livenessProbe:
            httpGet: {path: /healthz, port: health}
            periodSeconds: 30
            timeoutSeconds: 10
            failureThreshold: 6
          {{- end }}
      volumes: {{- include "common.volumes" . | nindent 8 }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .name }}
  namespace: {{ $root.Release.Namespace }}
  labels: {{- $labels | nindent 4 }}
spec:
  maxUnavailable: 1
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels: {{- $select | nindent 6 }}
---
apiVersion: v1
kind: Service
metadata:
  name: {{ .name }}-metrics
  namespace: {{ $root.Release.Namespace }}
  labels: {{- $labels | nindent 4 }}
  annotations:
    prometheus.io/scrape: "true"
    prometheus.io/port: {{ $health | quote }}
spec:
  clusterIP: None
  selector: {{- $select | nindent 4 }}
  ports:
    - {name: metrics, port: {{ $health }}, targetPort: health}
{{- if $root.Values.networkPolicy.enabled }}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ .name }}
  namespace: {{ $root.Release.Namespace }}
  labels: {{- $labels | nindent 4 }}
spec:
  podSelector:
    matchLabels: {{- $select | nindent 6 }}
  policyTypes: [Ingress, Egress]
  ingress:
    - from: {{- toYaml $root.Values.networkPolicy.metricsFrom | nindent 8 }}
      ports:
        - {port: {{ $health }}, protocol: TCP}
    {{- range .ports }}
    - ports:
        - {port: {{ .port }}, protocol: TCP}
      {{- with .from }}
      from: {{- toYaml . | nindent 8 }}
      {{- end }}
    {{- end }}
  egress:
    {{- /* 8053 is the port of CoreDNS' pods in a Shoot, for example of a managed seed: a policy sees pods, not Services. */}}
    - ports:
        - {port: 53, protocol: UDP}
        - {port: 53, protocol: TCP}
        - {port: 8053, protocol: UDP}
        - {port: 8053, protocol: TCP}
        {{- range $root.Values.networkPolicy.egressPorts }}
        - {port: {{ . }}, protocol: TCP}
        {{- end }}
{{- end }}
{{- end -}}

{{/* Fields that all of our containers have: takes the dictionary of "common.process". */}}
{{- define "common.container" -}}
image: {{ include "common.image" . }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
args: [worker, {{ .worker }}, --config, /etc/gardener/config.yaml]
env:
  - {name: MALLOC_ARENA_MAX, value: "2"}
  - {name: PYTHONDONTWRITEBYTECODE, value: "1"}
  {{- with (.values | default dict).env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
terminationMessagePolicy: FallbackToLogsOnError
resources: {{- toYaml .values.resources | nindent 2 }}
volumeMounts:
  - {name: config, mountPath: /etc/gardener, readOnly: true}
  - {name: tmp, mountPath: /tmp}
  {{- range .secrets }}
  - {name: {{ .name }}, mountPath: {{ .path }}, readOnly: true}
  {{- end }}
  {{- with (.values | default dict).volumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- define "common.volumes" -}}
- name: config
  configMap: {name: {{ .name }}}
- name: tmp
  emptyDir: {medium: Memory, sizeLimit: 64Mi}
{{- range .secrets }}
- name: {{ .name }}
  secret:
    secretName: {{ .secret }}
    defaultMode: 0440
    {{- with .items }}
    items: {{- toYaml . | nindent 6 }}
    {{- end }}
{{- end }}
{{- with (.values | default dict).volumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "common.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "common.image" -}}
{{- with .root.Values.image.ref -}}
{{ . }}
{{- else -}}
{{ .root.Values.image.repository }}:{{ .tag | default (include "common.version" .root) }}
{{- end -}}
{{- end -}}

{{/* Version of our code: tag of the image, and build id of the workers that run flows. */}}
{{- define "common.version" -}}
{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "common.select" -}}
app: gardener
role: {{ .name | trimPrefix "gardener-" }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- end -}}

{{- define "common.labels" -}}
{{ include "common.select" . }}
app.kubernetes.io/name: {{ .name }}
app.kubernetes.io/part-of: gardener
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end -}}

{{/* A Secret with a kubeconfig for the garden, as a mount; none if this cluster is the garden. */}}
{{- define "common.gardenSecrets" -}}
{{- if .secret -}}
- name: garden
  secret: {{ .secret }}
  path: /var/run/garden
  items: [{key: kubeconfig, path: kubeconfig}]
{{- end -}}
{{- end -}}

{{- define "common.codecSecrets" -}}
- name: codec
  secret: {{ .Values.temporal.codecKeySecret }}
  path: /var/run/codec
  items: [{key: key, path: key}]
{{- with .Values.temporal.sharedKeySecret }}
- name: shared-key
  secret: {{ . }}
  path: /var/run/shared-key
  items: [{key: key, path: key}]
{{- end }}
{{- end -}}

{{/* "gardenClientConnection" of a configuration. */}}
{{- define "common.gardenConnection" -}}
{{- if .secret -}}
kubeconfig: /var/run/garden/kubeconfig
{{- else -}}
{}
{{- end -}}
{{- end -}}

{{- define "common.temporal" -}}
address: {{ .Values.temporal.address }}
namespace: {{ .Values.temporal.namespace }}
codecKeyFile: /var/run/codec/key
{{- /* A restarted container finds its pod's volumes as its predecessor left them. */}}
journalDirectory: /tmp/journal
{{- if .Values.temporal.sharedKeySecret }}
sharedKeyFile: /var/run/shared-key/key
{{- end }}
{{- include "common.temporalTLS" . }}
{{- end -}}

{{/* Field "tls" of a configuration that names a Temporal, on a line of its own; nothing if it is switched off. */}}
{{- define "common.temporalTLS" -}}
{{- if .Values.temporal.tls.enabled }}
tls:
  caFile: /var/run/temporal/ca.crt
  certificateFile: /var/run/temporal/tls.crt
  privateKeyFile: /var/run/temporal/tls.key
  {{- with .Values.temporal.tls.serverName }}
  serverName: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* The Secret with the certificate for Temporal, as a mount: kubelets update the files when the Secret is renewed. */}}
{{- define "common.temporalSecrets" -}}
{{- if .Values.temporal.tls.enabled -}}
- name: temporal
  secret: {{ required "temporal.tls.secret is needed, or temporal.tls.enabled: false" .Values.temporal.tls.secret }}
  path: /var/run/temporal
  items:
    - {key: ca.crt, path: ca.crt}
    - {key: tls.crt, path: tls.crt}
    - {key: tls.key, path: tls.key}
{{- else -}}
[]
{{- end -}}
{{- end -}}

{{/* Warning for operators about a connection without TLS. */}}
{{- define "common.temporalNotes" -}}
{{- if not .Values.temporal.tls.enabled }}

WARNING: temporal.tls.enabled is false. Commands to this cluster travel in plain text, and Temporal cannot tell our
processes from others: a process that reaches {{ .Values.temporal.address }} can start, change and end all operations.
{{- end }}
{{- end -}}

{{- define "common.health" -}}
address: 0.0.0.0
port: 2718
{{- end -}}

{{- define "common.leaderElection" -}}
leaderElect: true
resourceNamespace: {{ . }}
{{- end -}}

{{/* Rules for Prometheus from the chart's directory rules/, one group per file. */}}
{{- define "common.rules" -}}
{{- if .Values.monitoring.enabled -}}
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: {{ .Chart.Name }}
  namespace: {{ .Release.Namespace }}
  labels:
    app.kubernetes.io/instance: {{ .Release.Name }}
    app.kubernetes.io/part-of: gardener
    app.kubernetes.io/managed-by: {{ .Release.Service }}
    {{- with .Values.monitoring.labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  groups:
    {{- range $path, $_ := .Files.Glob "rules/*.yaml" }}
    {{- $.Files.Get $path | nindent 4 }}
    {{- end }}
{{- end -}}
{{- end -}}
