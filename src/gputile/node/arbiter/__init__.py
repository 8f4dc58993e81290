"""Schedules GPU time in turns, by weights, guarantees, ceilings and priorities (G4, M5)."""
