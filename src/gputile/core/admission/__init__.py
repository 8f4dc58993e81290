"""Reviews a pod before it is stored: rewrites old forms, completes it, and may refuse it."""
