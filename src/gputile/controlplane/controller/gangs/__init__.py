"""Contains the planning of gangs: which start and where, what is reserved, and who leaves for them."""
