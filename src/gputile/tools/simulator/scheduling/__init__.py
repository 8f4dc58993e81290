"""Places the pods of a cluster one by one, with the code that decides live."""
