#!/bin/sh
set -eu

# NodeOverlay is alpha: install Karpenter with --set settings.featureGates.nodeOverlay=true. Without it, Karpenter
# does not know what the nodes will advertise, and adds no nodes.

# The NodePool uses the EC2NodeClass gpu, which must exist. Its image determines the driver.

# The NodePool's limits allow the GPUs of 4 nodes.

# An autoscaler knows that a node has 716 units of 128MiB in total. It does not know that one GPU has 179. Without
# autoscaling.nodeTypes it would add a useless node for a pod that asks for more than 179 units on one GPU.

# The pool's entry in autoscaling.nodeTypes of gputile's chart: [{"label": "karpenter.sh/nodepool=gpu", "gpus":
# {"count": 4, "memory": "23028MiB"}, "mode": "cgpu", "labels": {"ack.node.gpu.schedule": "cgpu",
# "ack.node.gpu.placement": "spread", "aliyun.accelerator/nvidia_count": "4", "aliyun.accelerator/nvidia_name":
# "NVIDIA-A10G", "aliyun.accelerator/nvidia_mem": "23028MiB", "alpha.kubernetes.io/nvidia-gpu-name": "NVIDIA-A10G",
# "model.gputile.io/NVIDIA-A10G": "4", "node.kubernetes.io/instance-type": "g5.12xlarge"}}]

cat > gpu.karpenter.yaml <<'YAML'
apiVersion: karpenter.sh/v1
kind: NodePool
metadata:
  name: gpu
spec:
  limits:
    nvidia.com/gpu: '16'
  template:
    metadata:
      labels:
        ack.node.gpu.schedule: cgpu
        ack.node.gpu.placement: spread
        aliyun.accelerator/nvidia_count: '4'
        aliyun.accelerator/nvidia_name: NVIDIA-A10G
        aliyun.accelerator/nvidia_mem: 23028MiB
    spec:
      nodeClassRef:
        group: karpenter.k8s.aws
        kind: EC2NodeClass
        name: gpu
      requirements:
      - key: node.kubernetes.io/instance-type
        operator: In
        values:
        - g5.12xlarge
      taints:
      - key: nvidia.com/gpu
        value: present
        effect: NoSchedule
---
apiVersion: karpenter.sh/v1alpha1
kind: NodeOverlay
metadata:
  name: gpu
spec:
  requirements:
  - key: karpenter.sh/nodepool
    operator: In
    values:
    - gpu
  - key: node.kubernetes.io/instance-type
    operator: In
    values:
    - g5.12xlarge
  capacity:
    aliyun.com/gpu-mem: '716'
YAML

kubectl apply -f gpu.karpenter.yaml
