"""Implements the policy ``packing``: it learns prices of shares from demand, and scores by them."""
