#!/bin/sh
set -eu

# The label gke-no-default-nvidia-gpu-device-plugin keeps GKE's device plugin, and the driver installer in its pod,
# off the nodes.

# GKE's autoscaler has no hint for aliyun.com/gpu-mem: it learns from a node that is there, so that a pool of no nodes
# does not grow. Set minNodes to 1.

# An autoscaler sees the sum of a node, 358 units of 128MiB, and not that one GPU has 179. Without
# autoscaling.nodeTypes a pod that asks for more than 179 on one GPU would bring a node in vain.

# The pool's entry in autoscaling.nodeTypes of gputile's chart: [{"label": "cloud.google.com/gke-nodepool=gpu",
# "gpus": {"count": 2, "memory": "23034MiB"}, "mode": "cgpu", "labels": {"ack.node.gpu.schedule": "cgpu",
# "ack.node.gpu.placement": "spread", "aliyun.accelerator/nvidia_count": "2", "aliyun.accelerator/nvidia_mem":
# "23034MiB", "node.kubernetes.io/instance-type": "g2-standard-24"}}]

gcloud container node-pools create gpu \
  --cluster research \
  --location europe-west4 \
  --machine-type g2-standard-24 \
  --accelerator type=nvidia-l4,count=2,gpu-driver-version=disabled \
  --node-labels ack.node.gpu.schedule=cgpu,ack.node.gpu.placement=spread,gke-no-default-nvidia-gpu-device-plugin=true \
  --node-taints nvidia.com/gpu=present:NoSchedule \
  --enable-autoscaling --num-nodes 0 --min-nodes 0 --max-nodes 4

# The driver, on Container-Optimized OS.
kubectl apply -f https://raw.githubusercontent.com/GoogleCloudPlatform/container-engine-accelerators/master/nvidia-driver-installer/cos/daemonset-preloaded.yaml

# The agents of these nodes need these values of the chart: --set agent.driverDir=/home/kubernetes/bin/nvidia
