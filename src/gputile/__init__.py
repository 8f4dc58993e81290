"""gputile shares the GPUs of a Kubernetes cluster."""
