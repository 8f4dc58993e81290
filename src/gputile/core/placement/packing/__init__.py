"""The policy ``packing``: prices of shares, learnt from demand, and what a placement costs by them."""
