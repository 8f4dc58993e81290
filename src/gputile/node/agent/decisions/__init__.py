"""Decides what is to be done by the state and what has happened: it reads and awaits nothing."""
