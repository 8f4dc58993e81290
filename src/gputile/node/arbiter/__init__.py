"""Hands out time on a GPU in turns to the containers on it: weights, guarantees, ceilings, priorities (G4, M5)."""
