"""Checks paths of files, as the API server does."""

from gputile.api.wording import shown


def broken_steps(path: str) -> str | None:
    """Return why ``path`` may lead out of where it begins; None where it does not."""
    return f"Invalid value: {shown(path)}: must not contain '..'" if ".." in path.split("/") else None


def broken_path_below(path: str) -> str | None:
    """Return why ``path`` does not stay below the place that it starts from; None where it does."""
    return f"Invalid value: {shown(path)}: must be a relative path" if path.startswith("/") else broken_steps(path)


def broken_file_path(path: str) -> str | None:
    """Return why ``path`` is no path for a file of a volume; None where it is one."""
    if path.startswith("..") and ".." not in path.split("/"):
        return f"Invalid value: {shown(path)}: must not start with '..'"
    return broken_path_below(path)


def broken_absolute_path(path: str) -> str | None:
    """Return why ``path`` does not begin at the root; None where it does."""
    return None if path.startswith("/") else f"Invalid value: {shown(path)}: must be an absolute path"
