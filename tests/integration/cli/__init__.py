"""The command line as a program of its own: signals, terminals, shells and whatever people type."""
