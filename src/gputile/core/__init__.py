"""Makes the decisions of all components, without I/O and clock; randomness is passed in."""
