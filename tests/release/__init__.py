"""What a release consists of."""
