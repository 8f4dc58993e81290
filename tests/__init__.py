"""The tests of gputile."""
