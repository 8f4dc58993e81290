"""Checks single values: fields by their types, names, numbers, addresses, schedules."""
