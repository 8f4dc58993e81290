#!/bin/sh
set -eu

# The open-source cluster autoscaler reads these tags from a scale set. AKS does not promise that its managed
# autoscaler reads them. If an empty pool does not grow, set minNodes to 1: the autoscaler then learns the resources
# from the existing node.

# The pool's entry in autoscaling.nodeTypes of gputile's chart: [{"label": "kubernetes.azure.com/agentpool=gpu",
# "gpus": {"count": 1, "memory": "15360MiB"}, "mode": "cgpu", "labels": {"ack.node.gpu.schedule": "cgpu",
# "ack.node.gpu.placement": "spread", "aliyun.accelerator/nvidia_count": "1", "aliyun.accelerator/nvidia_name":
# "Tesla-T4", "aliyun.accelerator/nvidia_mem": "15360MiB", "alpha.kubernetes.io/nvidia-gpu-name": "Tesla-T4",
# "model.gputile.io/Tesla-T4": "1", "node.kubernetes.io/instance-type": "Standard_NC16as_T4_v3"}}]

az aks nodepool add \
  --resource-group research-rg \
  --cluster-name research \
  --name gpu \
  --node-vm-size Standard_NC16as_T4_v3 \
  --gpu-driver none \
  --labels ack.node.gpu.schedule=cgpu ack.node.gpu.placement=spread aliyun.accelerator/nvidia_count=1 aliyun.accelerator/nvidia_name=Tesla-T4 aliyun.accelerator/nvidia_mem=15360MiB \
  --node-taints nvidia.com/gpu=present:NoSchedule \
  --tags k8s.io_cluster-autoscaler_node-template_resources_aliyun.com_gpu-mem=120 \
  --enable-cluster-autoscaler \
  --min-count 0 --max-count 4 --node-count 0

# The Operator's pods access GPUs without booking them. gputile refuses such pods unless their namespace has the label
# gputile.io/unsafe-gpu-access=allowed.
kubectl create namespace gpu-operator --dry-run=client --output=yaml | kubectl apply --filename=-

kubectl label namespace gpu-operator gputile.io/unsafe-gpu-access=allowed --overwrite

# NVIDIA's GPU Operator installs driver and toolkit. Its device plugin is disabled: gputile's agent replaces it.
helm repo add nvidia https://helm.ngc.nvidia.com/nvidia --force-update

helm install gpu-operator nvidia/gpu-operator \
  --namespace gpu-operator --wait \
  --set devicePlugin.enabled=false

# The agents of these nodes need these values of the chart: --set agent.runtimeClassName=nvidia
