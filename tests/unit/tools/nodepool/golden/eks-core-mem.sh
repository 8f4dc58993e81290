#!/bin/sh
set -eu

# An autoscaler knows that a node has 716 units of 128MiB in total. It does not know that one GPU has 179. Without
# autoscaling.nodeTypes it would add a useless node for a pod that asks for more than 179 units on one GPU.

# The pool's entry in autoscaling.nodeTypes of gputile's chart: [{"label": "eks.amazonaws.com/nodegroup=gpu", "gpus":
# {"count": 4, "memory": "23028MiB"}, "mode": "core_mem", "labels": {"ack.node.gpu.schedule": "core_mem",
# "ack.node.gpu.placement": "spread", "aliyun.accelerator/nvidia_count": "4", "aliyun.accelerator/nvidia_name":
# "NVIDIA-A10G", "aliyun.accelerator/nvidia_mem": "23028MiB", "alpha.kubernetes.io/nvidia-gpu-name": "NVIDIA-A10G",
# "model.gputile.io/NVIDIA-A10G": "4", "node.kubernetes.io/instance-type": "g5.12xlarge"}}]

cat > gpu.eksctl.yaml <<'YAML'
apiVersion: eksctl.io/v1alpha5
kind: ClusterConfig
metadata:
  name: research
  region: eu-west-1
managedNodeGroups:
- name: gpu
  amiFamily: AmazonLinux2023
  instanceType: g5.12xlarge
  minSize: 0
  maxSize: 4
  desiredCapacity: 0
  labels:
    ack.node.gpu.schedule: core_mem
    ack.node.gpu.placement: spread
    aliyun.accelerator/nvidia_count: '4'
    aliyun.accelerator/nvidia_name: NVIDIA-A10G
    aliyun.accelerator/nvidia_mem: 23028MiB
  taints:
  - key: nvidia.com/gpu
    value: present
    effect: NoSchedule
  propagateASGTags: true
YAML

# gputile's agent is the device plugin; a second one would advertise the GPUs twice.
eksctl create nodegroup --config-file gpu.eksctl.yaml \
  --install-nvidia-plugin=false

# The tags state what a new node will advertise, so that the autoscaler can add the first node of an empty group.
# eksctl only writes tags for labels.
GROUP=$(aws eks describe-nodegroup --region eu-west-1 --cluster-name research --nodegroup-name gpu \
  --query 'nodegroup.resources.autoScalingGroups[0].name' --output text)

aws autoscaling create-or-update-tags --region eu-west-1 --tags \
  "ResourceId=$GROUP,ResourceType=auto-scaling-group,Key=k8s.io/cluster-autoscaler/node-template/resources/aliyun.com/gpu-mem,Value=716,PropagateAtLaunch=true" \
  "ResourceId=$GROUP,ResourceType=auto-scaling-group,Key=k8s.io/cluster-autoscaler/node-template/resources/aliyun.com/gpu-core.percentage,Value=400,PropagateAtLaunch=true" \
  "ResourceId=$GROUP,ResourceType=auto-scaling-group,Key=k8s.io/cluster-autoscaler/node-template/label/alpha.kubernetes.io/nvidia-gpu-name,Value=NVIDIA-A10G,PropagateAtLaunch=true" \
  "ResourceId=$GROUP,ResourceType=auto-scaling-group,Key=k8s.io/cluster-autoscaler/node-template/label/model.gputile.io/NVIDIA-A10G,Value=4,PropagateAtLaunch=true"
