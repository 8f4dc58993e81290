"""Sets up, limits and tests what the library of native/ enforces on a container."""
