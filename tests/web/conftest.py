"""What the tests of the page ask for."""

from tests.localcluster.browser import tab

__all__ = ["tab"]
