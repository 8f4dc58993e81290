"""Parses command lines, and says in plain sentences what is wrong with one."""
