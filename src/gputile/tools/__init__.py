"""Contains what people run: simulator, replay of traces, node pools, and the views of commands."""
