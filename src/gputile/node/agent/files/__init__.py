"""Manages the agent's files: its checkpoint, and the files that containers mount."""
