"""Serves and calls the kubelet's gRPC services by their descriptors; ``package`` is that of the service on the wire."""

from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass

from gputile.node.gateway import kubelet_pb2 as pb


def handlers(package: str, service: str, implementation: object) -> grpc.GenericRpcHandler:
    """Return what a server adds; gRPC answers UNIMPLEMENTED for the methods that ``implementation`` does not have."""
    found: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
    for method in pb.DESCRIPTOR.services_by_name[service].methods:
        if (answer := getattr(implementation, method.name, None)) is not None:
            request, response = _messages(method)
            make = (
                grpc.unary_stream_rpc_method_handler if method.server_streaming else grpc.unary_unary_rpc_method_handler
            )
            found[method.name] = make(answer, request.FromString, response.SerializeToString)
    return grpc.method_handlers_generic_handler(f"{package}.{service}", found)


class Stub:
    """A client of a service, with a function for each of its methods; ``channel`` may be one of asyncio."""

    def __init__(self, package: str, service: str, channel: Any) -> None:
        for method in pb.DESCRIPTOR.services_by_name[service].methods:
            request, response = _messages(method)
            make = channel.unary_stream if method.server_streaming else channel.unary_unary
            path = f"/{package}.{service}/{method.name}"
            setattr(self, method.name, make(path, request.SerializeToString, response.FromString))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


def _messages(method: MethodDescriptor) -> tuple[Any, Any]:
    return GetMessageClass(method.input_type), GetMessageClass(method.output_type)
