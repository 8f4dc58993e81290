#!/bin/sh
set -eu

# With the label gke-no-default-nvidia-gpu-device-plugin, neither GKE's device plugin nor the driver installer in its
# pod runs on the nodes.

# GKE's autoscaler takes no hints for aliyun.com/gpu-mem. It learns these resources from an existing node, so an empty
# pool does not grow. Set minNodes to 1.

# An autoscaler knows that a node has 358 units of 128MiB in total. It does not know that one GPU has 179. Without
# autoscaling.nodeTypes it would add a useless node for a pod that asks for more than 179 units on one GPU.

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
