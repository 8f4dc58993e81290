"""Answers what-if questions on manifests with the ledger and placement code of the live cluster."""
