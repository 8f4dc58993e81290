#!/bin/sh
set -eu

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
