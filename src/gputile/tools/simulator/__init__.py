"""Answers what-if questions on manifests with the ledger and placement that decide live."""
