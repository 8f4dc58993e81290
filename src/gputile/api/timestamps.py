"""Times as Kubernetes writes them: RFC 3339."""

from datetime import datetime


def unix_seconds(timestamp: str | None) -> float:
    """Return a time as Unix time in seconds, 0 where there is none or it cannot be read."""
    if not timestamp:
        return 0.0
    try:
        return datetime.fromisoformat(timestamp).timestamp()
    except (ValueError, OverflowError):
        return 0.0
