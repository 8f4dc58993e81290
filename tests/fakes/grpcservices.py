"""Serves and calls a gRPC service by its descriptor in a module of protoc."""

from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass


def handlers(service: ServiceDescriptor, implementation: object) -> grpc.GenericRpcHandler:
    """Return what a server adds; gRPC answers UNIMPLEMENTED for the methods that ``implementation`` does not have."""
    found: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
    for method in service.methods:
        if (answer := getattr(implementation, method.name, None)) is not None:
            request, response = _messages(method)
            make = (
                grpc.unary_stream_rpc_method_handler if method.server_streaming else grpc.unary_unary_rpc_method_handler
            )
            found[method.name] = make(answer, request.FromString, response.SerializeToString)
    return grpc.method_handlers_generic_handler(service.full_name, found)


class Stub:
    """A client of a service, with a function for each of its methods; ``channel`` may be one of asyncio."""

    def __init__(self, service: ServiceDescriptor, channel: Any) -> None:
        for method in service.methods:
            request, response = _messages(method)
            make = channel.unary_stream if method.server_streaming else channel.unary_unary
            path = f"/{service.full_name}/{method.name}"
            setattr(self, method.name, make(path, request.SerializeToString, response.FromString))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


def _messages(method: MethodDescriptor) -> tuple[Any, Any]:
    return GetMessageClass(method.input_type), GetMessageClass(method.output_type)
