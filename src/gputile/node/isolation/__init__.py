"""What is enforced on a container by the library of native/: its place, its limits, its proof."""
