"""Why a replica may not answer."""


class NotReady(Exception):
    """This replica may not answer now; the text says why. Another one may, or the same one a little later."""
