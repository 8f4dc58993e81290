"""Contains the client of the API server, with reflectors, leader election, events and errors."""
