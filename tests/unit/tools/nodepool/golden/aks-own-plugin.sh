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
  --labels ack.node.gpu.schedule=cgpu ack.node.gpu.placement=spread aliyun.accelerator/nvidia_count=1 aliyun.accelerator/nvidia_name=Tesla-T4 aliyun.accelerator/nvidia_mem=15360MiB \
  --node-taints nvidia.com/gpu=present:NoSchedule \
  --tags k8s.io_cluster-autoscaler_node-template_resources_aliyun.com_gpu-mem=120 \
  --enable-cluster-autoscaler \
  --min-count 0 --max-count 4 --node-count 0
