#!/bin/sh
set -eu

# The pool's entry in autoscaling.nodeTypes of gputile's chart: [{"label": "kubernetes.azure.com/agentpool=gpu",
# "gpus": {"count": 1, "memory": "15360MiB"}, "mode": "topology", "labels": {"ack.node.gpu.schedule": "topology",
# "aliyun.accelerator/nvidia_count": "1", "aliyun.accelerator/nvidia_name": "Tesla-T4",
# "aliyun.accelerator/nvidia_mem": "15360MiB", "alpha.kubernetes.io/nvidia-gpu-name": "Tesla-T4",
# "model.gputile.io/Tesla-T4": "1", "node.kubernetes.io/instance-type": "Standard_NC16as_T4_v3"}}]

az aks nodepool add \
  --resource-group research-rg \
  --cluster-name research \
  --name gpu \
  --node-vm-size Standard_NC16as_T4_v3 \
  --labels ack.node.gpu.schedule=topology aliyun.accelerator/nvidia_count=1 aliyun.accelerator/nvidia_name=Tesla-T4 aliyun.accelerator/nvidia_mem=15360MiB \
  --node-taints nvidia.com/gpu=present:NoSchedule \
  --tags k8s.io_cluster-autoscaler_node-template_resources_aliyun.com_gpu=1 \
  --enable-cluster-autoscaler \
  --min-count 1 --max-count 4 --node-count 1
