"""Schedules the time on GPUs in turns, by weights, guarantees, ceilings and priorities (G4, M5)."""
