"""What-if on manifests: the same ledger and placement that decide live, fed from files."""
