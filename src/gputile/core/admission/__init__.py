"""What happens to a pod before it is stored: old forms rewritten, GPU pods completed, what breaks a rule refused."""
