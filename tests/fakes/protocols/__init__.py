"""The kubelet's side of its gRPC services: generated, and used by the fakes of kubelets alone."""
