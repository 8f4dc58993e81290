{{- /* Rules between values, which the schema cannot say. Every message names the value, the rule and the remedy. */ -}}
{{- define "gputile.validate" -}}
{{- $suffix := regexFind "[MGT]" .Values.gpuMemoryUnit -}}
{{- $number := regexFind "^[0-9]+" .Values.gpuMemoryUnit | int64 -}}
{{- $mib := mul $number (get (dict "M" 1 "G" 1024 "T" 1048576) $suffix) -}}
{{- if lt $mib 64 }}
{{- fail (printf "gpuMemoryUnit is %s: the smallest valid unit is 64MiB" .Values.gpuMemoryUnit) }}
{{- end }}
{{- if gt $mib 16777216 }}
{{- fail (printf "gpuMemoryUnit is %s: the largest valid unit is 16777216MiB" .Values.gpuMemoryUnit) }}
{{- end }}
{{- if and .Values.features.batch (not (and .Values.webhook.enabled .Values.controller.enabled)) }}
{{- fail "features.batch needs webhook.enabled and controller.enabled: the webhook holds the pods of a gang, the controller lets the whole gang go; enable both, or set features.batch=false" }}
{{- end }}
{{- if and .Values.autoscaling.enabled (not (and .Values.webhook.enabled .Values.controller.enabled)) }}
{{- fail "autoscaling.enabled needs webhook.enabled and controller.enabled: the controller asks for nodes, the webhook keeps pods off node types that could never take them; enable both, or set autoscaling.enabled=false" }}
{{- end }}
{{- if and .Values.autoscaling.enabled (not .Values.autoscaling.nodeTypes) }}
{{- fail "autoscaling.nodeTypes is empty: no node would be asked for; describe the GPU nodes that the autoscaler can add, as `gputile nodepool` prints them, or set autoscaling.enabled=false" }}
{{- end }}
{{- if and .Values.web.enabled (not .Values.web.tlsSecret) }}
{{- fail "web.tlsSecret is not set: viewers show tokens, so the page serves by HTTPS alone; name a Secret of the type kubernetes.io/tls, as cert-manager makes them" }}
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
{{- $group := dict -}}
{{- range $name, $namespaces := .Values.trust.groups }}
{{- range $namespaces }}
{{- if and (hasKey $group .) (ne (get $group .) $name) }}
{{- fail (printf "trust.groups: namespace %s is in %s and in %s: keep it in one" . (get $group .) $name) }}
{{- end }}
{{- $_ := set $group . $name }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Refuse two listeners of one network on one port. Call with the ports by what they are called. */ -}}
{{- define "gputile.distinctPorts" -}}
{{- $taken := dict }}
{{- range $name, $port := . }}
{{- $number := $port | int | toString }}
{{- if hasKey $taken $number }}
{{- fail (printf "%s and %s are both %s: give each a port of its own" (get $taken $number) $name $number) }}
{{- end }}
{{- $_ := set $taken $number $name }}
{{- end }}
{{- end }}
