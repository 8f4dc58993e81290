"""Holds the version of gputile, where the build reads it too.

Asking the installed packages takes a tenth of a second.
"""

VERSION = "0.2.0"
