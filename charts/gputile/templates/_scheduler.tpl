{{- /* kube-scheduler's configuration: all of it for a second scheduler, the part to add for the cluster's own. */ -}}
{{- define "gputile.schedulerConfiguration" -}}
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
{{- if include "gputile.secondScheduler" . }}
leaderElection:
  leaderElect: true
  resourceName: {{ include "gputile.name" . }}-scheduler
  resourceNamespace: {{ .Release.Namespace | quote }}
profiles:
- schedulerName: {{ .Values.scheduler.name | quote }}
{{- end }}
# If only a sample of the nodes were scored, a pod that fits elsewhere could stay pending.
percentageOfNodesToScore: 100
{{- if semverCompare ">=1.33.0-0" .Capabilities.KubeVersion.Version }}
# Thousands of refused pods of one namespace shall not keep the scheduler from all others. When no other pod waits,
# kube-scheduler tries refused pods without waiting for the end of their backoff; before 1.33 it did not.
podMaxBackoffSeconds: 60
{{- end }}
extenders:
- urlPrefix: http://127.0.0.1:{{ .Values.scheduler.extender.port }}
  filterVerb: filter
  prioritizeVerb: prioritize
  bindVerb: bind
  preemptVerb: preempt
  # One rank of the extender outweighs the scheduler's own scores, which would undo binpack.
  weight: 200
  nodeCacheCapable: true
  httpTimeout: 5s
  managedResources:
  - name: nvidia.com/gpu
  - name: aliyun.com/gpu-mem
  - name: aliyun.com/gpu-core.percentage
  - name: aliyun.com/gpu
{{- if .Values.features.claims }}
# For pods with ResourceClaims, which admission brings here by an amount of 0: kube-scheduler allocates the GPUs itself, so
# it goes on without the extender if that is away.
- urlPrefix: http://127.0.0.1:{{ .Values.scheduler.extender.port }}
  prioritizeVerb: prioritize-claims
  weight: 200
  nodeCacheCapable: true
  httpTimeout: 1s
  ignorable: true
  managedResources:
  - name: gputile.io/claims
    ignoredByScheduler: true
{{- end }}
{{- if .Values.scheduler.extender.ranksPodsWithoutGpus }}
# For all pods: those without GPUs go to nodes where free GPUs need their CPU and memory least.
- urlPrefix: http://127.0.0.1:{{ .Values.scheduler.extender.port }}
  prioritizeVerb: prioritize-without-gpus
  weight: 200
  nodeCacheCapable: true
  httpTimeout: 1s
{{- end }}
{{- end }}

{{- define "gputile.extenderContainer" -}}
name: extender
image: {{ include "gputile.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
args:
- extender
- --host=127.0.0.1
- --port={{ .Values.scheduler.extender.port }}
- --health-port={{ .Values.scheduler.extender.healthPort }}
- --config=/etc/gputile/configuration.yaml
- --identity=$(IDENTITY)
- --lease-namespace=$(NAMESPACE)
- --lease-seconds={{ .Values.scheduler.extender.leaseSeconds }}
env:
{{- with .Values.scheduler.extender.extraEnv }}
{{ toYaml . }}
{{- end }}
# The Lease's holder identity: a restarted container of the same pod continues at once.
- name: IDENTITY
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
ports:
- name: metrics
  containerPort: {{ .Values.scheduler.extender.healthPort }}
{{ include "gputile.httpProbes" "metrics" }}
resources: {{- toYaml .Values.scheduler.extender.resources | nindent 2 }}
securityContext: {{- include "gputile.restrictedContainer" . | nindent 2 }}
volumeMounts:
- name: configuration
  mountPath: /etc/gputile
  readOnly: true
{{- end }}
