"""What the tests of the page ask for."""

from tests.browsertab import tab

__all__ = ["tab"]
