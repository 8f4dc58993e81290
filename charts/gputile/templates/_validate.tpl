{{- /* Rules that the schema of the values cannot express. Every message names the value, the rule and the remedy. */ -}}
{{- define "gputile.validate" -}}
{{- $mib := include "gputile.mib" .Values.gpuMemoryUnit | int64 -}}
{{- $most := 16777216 -}}
{{- if lt $mib 64 }}
{{- fail (printf "gpuMemoryUnit is %s: the smallest valid unit is 64MiB" .Values.gpuMemoryUnit) }}
{{- end }}
{{- if gt $mib $most }}
{{- fail (printf "gpuMemoryUnit is %s: the largest valid unit is %dMiB" .Values.gpuMemoryUnit $most) }}
{{- end }}
{{- if and .Values.features.batch (not (and .Values.webhook.enabled .Values.controller.enabled)) }}
{{- fail "features.batch needs webhook.enabled and controller.enabled: the webhook adds scheduling gates to the pods of a gang, and the controller removes them; enable both, or set features.batch=false" }}
{{- end }}
{{- if .Values.features.claims }}
{{- if not (semverCompare ">=1.34.0-0" .Capabilities.KubeVersion.Version) }}
{{- fail (printf "features.claims needs Kubernetes 1.34, and 1.36 for shares; this is %s: set features.claims=false" .Capabilities.KubeVersion.Version) }}
{{- end }}
{{- if and .Values.agent.enabled (not .Values.agent.cdiDir) }}
{{- fail "features.claims needs agent.cdiDir, because containers get the devices of claims by CDI; set agent.cdiDir=/var/run/cdi, or features.claims=false" }}
{{- end }}
{{- end }}
{{- if and .Values.autoscaling.enabled (not (and .Values.webhook.enabled .Values.controller.enabled)) }}
{{- fail "autoscaling.enabled needs webhook.enabled and controller.enabled: the controller requests nodes, and the webhook keeps pods off node types that they can never fit; enable both, or set autoscaling.enabled=false" }}
{{- end }}
{{- if and .Values.autoscaling.enabled (not .Values.autoscaling.nodeTypes) }}
{{- fail "autoscaling.nodeTypes is empty, so no node would be requested; describe the GPU nodes that the autoscaler can add, as `gputile nodepool` prints them, or set autoscaling.enabled=false" }}
{{- end }}
{{- $unit := .Values.gpuMemoryUnit -}}
{{- $labels := list -}}
{{- range $i, $type := .Values.autoscaling.nodeTypes }}
{{- $where := printf "autoscaling.nodeTypes[%d]" $i }}
{{- if has $type.label $labels }}
{{- fail (printf "%s.label: %s is also the label of another node type: give each node type its own label" $where $type.label) }}
{{- end }}
{{- $labels = append $labels $type.label }}
{{- $memory := include "gputile.mib" $type.gpus.memory | int64 }}
{{- if lt $memory $mib }}
{{- fail (printf "%s.gpus.memory is %s: a GPU is smaller than one unit of %s" $where $type.gpus.memory $unit) }}
{{- end }}
{{- if gt $memory $most }}
{{- fail (printf "%s.gpus.memory is %s: a GPU has at most %d MiB" $where $type.gpus.memory $most) }}
{{- end }}
{{- $pair := splitn "=" 2 $type.label }}
{{- $mode := $type.mode | default "default" }}
{{- range $key, $value := $type.labels }}
{{- if not (regexMatch "^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$" $key) }}
{{- fail (printf "%s.labels: %q is not a valid label key" $where $key) }}
{{- end }}
{{- if and (eq $key $pair._0) (ne $value $pair._1) }}
{{- fail (printf "%s.labels.%s is %s, but label requires %s" $where $key $value $pair._1) }}
{{- end }}
{{- if and (eq $key "ack.node.gpu.schedule") (ne $value $mode) }}
{{- fail (printf "%s.labels.%s is %s, but mode requires %s" $where $key $value $mode) }}
{{- end }}
{{- end }}
{{- range list "aliyun.com/gpu-mem" "aliyun.com/gpu-core.percentage" "aliyun.com/gpu" "nvidia.com/gpu" "alpha.kubernetes.io/nvidia-gpu" }}
{{- if hasKey ($type.resources | default dict) . }}
{{- fail (printf "%s.resources has %s: remove it, because gpus and mode define it" $where .) }}
{{- end }}
{{- end }}
{{- end }}
{{- if and .Values.web.enabled (not .Values.web.tlsSecret) }}
{{- fail "web.tlsSecret is not set: viewers log in with tokens, so the page needs HTTPS; name a Secret of the type kubernetes.io/tls, such as cert-manager creates" }}
{{- end }}
{{- with .Values.webhook }}
{{- if .enabled }}{{ include "gputile.distinctPorts" (dict "webhook.port" .port "webhook.healthPort" .healthPort) }}{{ end }}
{{- end }}
{{- with .Values.web }}
{{- if .enabled }}{{ include "gputile.distinctPorts" (dict "web.port" .port "web.healthPort" .healthPort) }}{{ end }}
{{- end }}
{{- if .Values.scheduler.enabled }}
{{- with .Values.scheduler.extender }}
{{- include "gputile.distinctPorts" (dict "scheduler.extender.port" .port "scheduler.extender.healthPort" .healthPort "kube-scheduler's own port" 10259) }}
{{- end }}
{{- end }}
{{- if .Values.agent.enabled }}{{ include "gputile.distinctDirectories" .Values.agent }}{{ end }}
{{- /* The schema's error about an invalid key does not contain the path of the key. */}}
{{- range $namespace, $_ := .Values.gpuTime.namespaceMaxWeight }}
{{- if not (regexMatch "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$" $namespace) }}
{{- fail (printf "gpuTime.namespaceMaxWeight: %q is not the name of a namespace" $namespace) }}
{{- end }}
{{- end }}
{{- $group := dict -}}
{{- range $name, $namespaces := .Values.trust.groups }}
{{- range $namespaces }}
{{- if and (hasKey $group .) (ne (get $group .) $name) }}
{{- fail (printf "trust.groups: namespace %s is in %s and in %s: remove it from one of them" . (get $group .) $name) }}
{{- end }}
{{- $_ := set $group . $name }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Returns a memory size in MiB. The schema has already validated it. */ -}}
{{- define "gputile.mib" -}}
{{- /* A number that begins with 0 would be parsed as octal. */ -}}
{{- $number := . | regexFind "[1-9][0-9]*" | default "0" | int64 -}}
{{- mul $number (get (dict "M" 1 "G" 1024 "T" 1048576) (regexFind "[MGT]" .)) -}}
{{- end }}

{{- /* Refuses directories of the host that overlap each other, or the directories of the agent's container. */ -}}
{{- define "gputile.distinctDirectories" -}}
{{- $agent := . }}
{{- range list "kubeletDir" "stateDir" "usageDir" "cdiDir" "driverDir" }}
{{- if regexMatch "(^|/)[.][.]?(/|$)" (get $agent . | default "") }}
{{- fail (printf "agent.%s is %s: name the directory without . and .." . (get $agent .)) }}
{{- end }}
{{- end }}
{{- $taken := list }}
{{- range list "/tmp" "/etc/gputile" "/proc" "/sys" "/usr/local/nvidia" "/var/lib/kubelet/device-plugins" (printf "%s/pod-resources" .kubeletDir) }}
{{- $taken = append $taken (dict "path" (clean .) "said" (printf "the agent has a place of its own at %s" .)) }}
{{- end }}
{{- range $name := list "stateDir" "usageDir" "cdiDir" }}
{{- with get $agent $name }}
{{- $path := clean . | trimSuffix "/" }}
{{- $said := printf "agent.%s is %s" $name . }}
{{- range $taken }}
{{- if or (hasPrefix (printf "%s/" .path) (printf "%s/" $path)) (hasPrefix (printf "%s/" $path) (printf "%s/" .path)) }}
{{- fail (printf "%s, and %s: neither may be within the other" $said .said) }}
{{- end }}
{{- end }}
{{- $taken = append $taken (dict "path" $path "said" $said) }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Refuses two listeners on the same port of one network. Call this with the ports by the name of the value. */ -}}
{{- define "gputile.distinctPorts" -}}
{{- $taken := dict }}
{{- range $name, $port := . }}
{{- $number := $port | int | toString }}
{{- if hasKey $taken $number }}
{{- fail (printf "%s and %s are both %s: use a different port for each" (get $taken $number) $name $number) }}
{{- end }}
{{- $_ := set $taken $number $name }}
{{- end }}
{{- end }}
