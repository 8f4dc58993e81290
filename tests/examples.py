"""How many examples hypothesis tries."""

from hypothesis import settings

LEAST = 10


def examples(count: int) -> int:
    """Return how many examples a test of ``count`` tries: that many, or a fifth of them in `make quick`.

    tests/conftest.py has the profiles. Tests that say no number of their own go by them as they are.
    """
    part = settings().max_examples / settings.get_profile("gputile").max_examples
    return min(count, max(LEAST, round(count * part)))
