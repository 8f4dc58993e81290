"""The rules of ``ack.node.gpu.placement`` for one node: binpack and spread."""
