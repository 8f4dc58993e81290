"""Computes what people look at from the ledger: tables, explanations and numbers."""
