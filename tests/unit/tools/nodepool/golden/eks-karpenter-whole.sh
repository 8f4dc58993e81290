#!/bin/sh
set -eu

# The NodePool uses the EC2NodeClass gpu, which must exist. Its image determines the driver.

# A NodePool has no minimum number of nodes, so minNodes 1 has no effect.

# The NodePool's limits allow the GPUs of 4 nodes.

# The pool's entry in autoscaling.nodeTypes of gputile's chart: [{"label": "karpenter.sh/nodepool=gpu", "gpus":
# {"count": 4, "memory": "23028MiB"}, "mode": "default", "labels": {"ack.node.gpu.schedule": "default",
# "ack.node.gpu.placement": "spread", "aliyun.accelerator/nvidia_count": "4", "aliyun.accelerator/nvidia_name":
# "NVIDIA-A10G", "aliyun.accelerator/nvidia_mem": "23028MiB", "alpha.kubernetes.io/nvidia-gpu-name": "NVIDIA-A10G",
# "model.gputile.io/NVIDIA-A10G": "4", "node.kubernetes.io/instance-type": "g5.12xlarge"}}]

# The Operator's pods access GPUs without booking them. gputile refuses such pods unless their namespace has the label
# gputile.io/unsafe-gpu-access=allowed.
kubectl create namespace gpu-operator --dry-run=client --output=yaml | kubectl apply --filename=-

kubectl label namespace gpu-operator gputile.io/unsafe-gpu-access=allowed --overwrite

# NVIDIA's GPU Operator installs driver and toolkit. Its device plugin is disabled: gputile's agent replaces it.
helm repo add nvidia https://helm.ngc.nvidia.com/nvidia --force-update

helm install gpu-operator nvidia/gpu-operator \
  --namespace gpu-operator --wait \
  --set devicePlugin.enabled=false

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
        ack.node.gpu.schedule: default
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
YAML

kubectl apply -f gpu.karpenter.yaml

# The agents of these nodes need these values of the chart: --set agent.runtimeClassName=nvidia
