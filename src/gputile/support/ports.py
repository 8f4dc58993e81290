"""Binds the ports that services listen on before anything else begins."""

import socket


class PortError(Exception):
    """A port cannot be opened; the text says which option asked for it, why not, and what helps."""

    def __init__(self, option: str, host: str, port: int, error: OSError) -> None:
        address = f"{host} port {port}" if host else f"port {port}"
        super().__init__(f"cannot listen on {address}: {error.strerror}; choose another with {option}")


def bind_port(option: str, host: str, port: int) -> socket.socket:
    """Return a socket that has ``port`` of ``host``, and does not listen yet; ``option`` is what asked for it.

    Raises:
        PortError: it cannot be opened.
    """
    held = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((host, port))
    except OSError as error:
        held.close()
        raise PortError(option, host, port, error) from error
    return held
