"""What people look at: tables, explanations and numbers, computed from the ledger."""
