"""What the agent remembers through its own death."""
