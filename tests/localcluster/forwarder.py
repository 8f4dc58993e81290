"""Forwards TCP connections, as kube-proxy does for a Service: ``forwarder.py ADDRESS PORT TARGET_PORT``.

Whoever connects to ``ADDRESS:PORT`` reaches ``TARGET_PORT`` on this machine's loopback address.
"""

import asyncio
import contextlib
import sys

CHUNK = 1 << 16


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until the end of one direction, and end it on the other side too."""
    with contextlib.suppress(ConnectionError):
        while chunk := await reader.read(CHUNK):
            writer.write(chunk)
            await writer.drain()
    with contextlib.suppress(OSError):
        writer.write_eof()


async def _serve(address: str, port: int, target: int) -> None:
    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            upstream, downstream = await asyncio.open_connection("127.0.0.1", target)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_pump(reader, downstream), _pump(upstream, writer))
        for each in (writer, downstream):
            each.close()

    server = await asyncio.start_server(forward, address, port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
