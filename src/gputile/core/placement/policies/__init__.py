"""Orders the GPUs of one node for a pod: by ``ack.node.gpu.placement``, and under packing."""
