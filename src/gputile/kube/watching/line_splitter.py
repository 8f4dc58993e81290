"""Cuts the chunks of a watch at the newlines, and copies each byte at most twice.

A watch is one JSON object a line, in chunks of any size.
"""


class LineSplitter:
    """Collects chunks and hands out complete lines. A line in many chunks is joined once, when its end has come."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that ``chunk`` completes, without their newlines and without empty ones."""
        lines = chunk.split(b"\n")
        rest = lines.pop()
        if lines and self._pieces:
            self._pieces.append(lines[0])
            lines[0] = b"".join(self._pieces)
            self._pieces.clear()
        if rest:
            self._pieces.append(rest)
        return [line for line in lines if line]
