"""Which GPUs of one node a pod gets: by ``ack.node.gpu.placement`` (binpack, spread), and under packing."""
