"""What people run: the simulator, the replay of traces, node pools, and the views that commands print."""
