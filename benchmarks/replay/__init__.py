"""Replays a trace of pods, to measure how much each placement policy allocates on the same GPUs.

The protocol is that of "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with
Fragmentation Gradient Descent" (USENIX ATC 2023), with the files of the Alibaba
cluster-trace-gpu-v2023. Pods arrive one at a time until they have requested 130 % of the cluster's
GPUs. No pod leaves. A pod that fits no node when it arrives has failed.
"""
