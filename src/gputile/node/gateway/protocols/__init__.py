"""The gRPC messages and services of the kubelet, generated from the .proto files beside this module."""
