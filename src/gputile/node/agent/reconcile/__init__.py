"""Compares what the kubelet lists with what the ledger says, and corrects the ledger."""
