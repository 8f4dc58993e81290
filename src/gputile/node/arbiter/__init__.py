"""Hands out time on a GPU in turns (G4, M5).

Containers have weights, guarantees, ceilings and priorities.
"""
