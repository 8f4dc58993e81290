#!/bin/sh
set -eu

# GKE's device plugin serves nvidia.com/gpu on these nodes. gputile's agent offers no GPUs there, so that no GPU is
# advertised twice. Other modes need own-driver.

# The pool's entry in autoscaling.nodeTypes of gputile's chart: [{"label": "cloud.google.com/gke-nodepool=gpu",
# "gpus": {"count": 2, "memory": "23034MiB"}, "mode": "default", "labels": {"ack.node.gpu.schedule": "default",
# "ack.node.gpu.placement": "binpack", "aliyun.accelerator/nvidia_count": "2", "aliyun.accelerator/nvidia_mem":
# "23034MiB", "node.kubernetes.io/instance-type": "g2-standard-24"}}]

gcloud container node-pools create gpu \
  --cluster research \
  --location europe-west4 \
  --machine-type g2-standard-24 \
  --accelerator type=nvidia-l4,count=2,gpu-driver-version=default \
  --node-labels ack.node.gpu.schedule=default,ack.node.gpu.placement=binpack \
  --node-taints nvidia.com/gpu=present:NoSchedule \
  --enable-autoscaling --num-nodes 0 --min-nodes 0 --max-nodes 4
