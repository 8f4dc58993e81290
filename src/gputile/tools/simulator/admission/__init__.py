"""Does with a valid object what the API server does before it stores it."""
