"""Limits how long an answer may be that is read as a whole, and describes one that is not Kubernetes'."""

from typing import Final

MOST_ANSWER_BYTES: Final = 128 << 20  # a page of 500 pods or nodes has 5 MiB


MOST_HEAD_BYTES: Final = 1 << 20  # of headers, and of answers that only announce one; an API server's have 1 KiB


class TooLongAnswer(Exception):
    """An answer has more bytes than it may have; the text says of what."""


def endless_head() -> str:
    """Return what is wrong with an answer whose headers go on."""
    return f"the answer has more than {MOST_HEAD_BYTES >> 20} MiB of headers: is the server an API server?"


def too_long(most_bytes: int) -> str:
    """Return what is wrong with an answer of more than so many bytes."""
    return f"the answer is longer than {most_bytes >> 20} MiB, which no API server sends for a page: is the server one?"


def compressed(encoding: str) -> str:
    """Return what is wrong with an answer of an encoding that nobody asked for."""
    return f"the answer is compressed ({encoding[:20]!r}), and plain JSON was asked for: is the server an API server?"
