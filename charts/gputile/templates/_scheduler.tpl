{{- /* kube-scheduler's configuration. For the cluster's own scheduler, only the part that has to be added. */ -}}
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
# If kube-scheduler scored only a sample of the nodes, a pod that fits another node could stay pending.
percentageOfNodesToScore: 100
{{- if semverCompare ">=1.33.0-0" .Capabilities.KubeVersion.Version }}
# Thousands of refused pods of one namespace must not delay the pods of other namespaces. Since 1.33, kube-scheduler retries
# refused pods before the end of their back-off if no other pod is pending.
podMaxBackoffSeconds: 60
{{- end }}
extenders:
- urlPrefix: http://127.0.0.1:{{ .Values.scheduler.extender.port }}
  filterVerb: filter
  prioritizeVerb: prioritize
  bindVerb: bind
  preemptVerb: preempt
  # The extender's ranks must outweigh the scheduler's own scores, which would counteract binpack.
  weight: 200
  nodeCacheCapable: true
  httpTimeout: 5s
  managedResources:
  - name: nvidia.com/gpu
  - name: aliyun.com/gpu-mem
  - name: aliyun.com/gpu-core.percentage
  - name: aliyun.com/gpu
{{- if .Values.features.claims }}
# This entry ranks nodes for pods with ResourceClaims. Admission adds a resource with the amount 0 to these pods, so that the
# extender is called. kube-scheduler allocates the GPUs itself, and continues without the extender if it does not answer.
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
# This entry ranks nodes for all pods. Pods without GPUs get nodes whose CPU and memory are needed least by free GPUs.
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
# The identity in the Lease is the pod's name, so that a restarted container of the pod continues at once.
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
