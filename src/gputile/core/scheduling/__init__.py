"""Turns a request and the ledger into a decision with reasons, and the decision into a Binding."""
