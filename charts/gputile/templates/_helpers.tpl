{{- /* The prefix of all objects' names. Names of releases may begin with a digit or contain dots, but names of Services may not. */ -}}
{{- define "gputile.name" -}}
{{- $release := .Release.Name | replace "." "-" -}}
{{- if not (regexMatch "^[a-z]" $release) }}{{ $release = printf "gputile-%s" $release }}{{ end -}}
{{- contains "gputile" $release | ternary $release (printf "%s-gputile" $release) | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- /* The labels of every object. Call this with (dict "root" $ "component" "webhook"). */ -}}
{{- define "gputile.labels" -}}
{{ include "gputile.selector" . }}
app.kubernetes.io/part-of: gputile
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{- define "gputile.selector" -}}
app.kubernetes.io/name: gputile
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "gputile.image" -}}
{{- $image := .Values.image -}}
{{- if not $image.repository }}
{{- fail "image.repository is not set: build the Dockerfile, push the image, and give its name, as in --set image.repository=registry.example.com/gputile" }}
{{- end -}}
{{ $image.repository }}{{ if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "gputile.schedulerImage" -}}
{{- $image := .Values.scheduler.image -}}
{{- if not $image.repository }}
{{- fail "scheduler.image.repository is empty: name kube-scheduler's image, as registry.k8s.io/kube-scheduler, or set scheduler.mode=own" }}
{{- end -}}
{{- $version := semver .Capabilities.KubeVersion.Version -}}
{{- $cluster := printf "v%d.%d.%d" $version.Major $version.Minor $version.Patch -}}
{{ $image.repository }}{{ if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $image.tag | default $cluster }}{{ end }}
{{- end }}

{{- define "gputile.secondScheduler" -}}
{{- if and .Values.scheduler.enabled (eq .Values.scheduler.mode "second") }}true{{ end }}
{{- end }}

{{- define "gputile.user" -}}
system:serviceaccount:{{ .root.Release.Namespace }}:{{ include "gputile.name" .root }}-{{ .component }}
{{- end }}

{{- /* The fields of a pod and of a container that Pod Security's profile "restricted" requires. */ -}}
{{- define "gputile.restrictedPod" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "gputile.restrictedContainer" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- /* A pod's labels and annotations. The chart's own entries override those in the values. `annotations` are the chart's own. */ -}}
{{- define "gputile.podMetadata" -}}
labels: {{- mergeOverwrite (dict) (.values.podLabels | default dict) (include "gputile.labels" . | fromYaml) | toYaml | nindent 2 }}
{{- with mergeOverwrite (dict) (.values.podAnnotations | default dict) (.annotations | default dict) }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* The fields that the pods of all components have. Call this with (dict "root" $ "component" ... "values" .Values.x). */ -}}
{{- define "gputile.podCommon" -}}
serviceAccountName: {{ include "gputile.name" .root }}-{{ .component }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "gputile.spreadOverNodes" -}}
topologySpreadConstraints:
- maxSkew: 1
  topologyKey: kubernetes.io/hostname
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels: {{- include "gputile.selector" . | nindent 6 }}
{{- if not .values.affinity }}
# GPU nodes are tolerated, because a cluster may have no other nodes. Other nodes are preferred.
affinity:
  nodeAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      preference:
        matchExpressions:
        - {key: aliyun.accelerator/nvidia_count, operator: DoesNotExist}
{{- end }}
{{- end }}

{{- define "gputile.httpProbes" -}}
startupProbe:
  httpGet: {path: /healthz, port: {{ . }}}
  periodSeconds: 2
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /healthz, port: {{ . }}}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: {{ . }}}
  periodSeconds: 5
  timeoutSeconds: 3
{{- end }}

{{- /* The rules for Leases. They name each Lease, except for "create", which RBAC cannot restrict to a name. */ -}}
{{- define "gputile.leaseRules" -}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
{{- range $name, $verbs := . }}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [{{ $name }}]
  verbs: [{{ join ", " $verbs }}]
{{- end }}
{{- end }}
