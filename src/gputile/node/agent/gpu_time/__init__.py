"""How the time of each GPU is divided: shares, and the arbiter process that enforces them."""
