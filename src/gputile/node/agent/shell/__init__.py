"""Executes what is decided: looks up what decisions need, and does what they return, in its order."""
