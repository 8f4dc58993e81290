"""Lets containers use GPUs in turns, by weight, guarantee, ceiling and priority (G4, M5)."""
