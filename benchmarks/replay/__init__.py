"""Replays a trace of pods, to measure how much each placement policy allocates on the same GPUs.

The protocol is that of "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with
Fragmentation Gradient Descent" (USENIX ATC 2023), on the files of the Alibaba
cluster-trace-gpu-v2023. Pods arrive one at a time until 130 % of the cluster's GPUs have been
requested. No pod leaves. A pod that fits no node has failed.
"""
