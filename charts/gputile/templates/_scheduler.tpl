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
# With a sample of the nodes, a pod that fits none of the sample stays pending although it fits elsewhere.
percentageOfNodesToScore: 100
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
{{- if .Values.scheduler.extender.ranksPodsWithoutGpus }}
# All pods: those without GPUs go where their CPU and memory are not missing beside free GPUs.
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
# The name of the Lease's holder: a restarted container of the same pod goes on at once.
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
