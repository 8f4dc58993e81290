"""Contains the kubelet's gRPC messages and services, generated from the .proto files beside it."""
