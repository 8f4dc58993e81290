"""Leads from a request and the ledger to a decision with its reasons, and on to the Binding."""
