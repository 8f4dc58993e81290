"""Defines the options that several commands have, and completes their values."""
