"""Defines the version of gputile, for the programs and for the build.

To read it from the metadata of the installed package would take a tenth of a second.
"""

VERSION = "0.2.0"
