"""Defines how objects of the API server are decoded: slim, and each unknown field skipped."""

import msgspec


class WireObject(msgspec.Struct, rename="camel", gc=False, omit_defaults=True, kw_only=True):
    """Common settings of the wire objects.

    A process keeps tens of thousands of them. They refer to nothing that refers back, so the cyclic garbage collector
    need not walk them: they are not tracked by it, nor are tuples of them, as lists would be.
    """
