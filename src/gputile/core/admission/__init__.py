"""Reviews a pod before it is stored: rewrites old forms, completes the pod, and may refuse it."""
