"""The pure core: no I/O, no clock, no randomness that is not passed in. Every component decides with it."""
