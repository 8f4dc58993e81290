"""What commands that read a live cluster ask for."""

from tests.fakes.livecluster import kubeconfig, server, silent

__all__ = ["kubeconfig", "server", "silent"]
