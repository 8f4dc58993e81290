"""The page of the cluster's GPUs as tiles: its records, the server that streams them, and what the browser runs."""
