"""Manages the files of the agent: its checkpoint, and the files that containers mount."""
