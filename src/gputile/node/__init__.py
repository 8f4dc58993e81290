"""Contains the components that run on a GPU node."""
