"""Reads and writes times as Kubernetes does: RFC 3339."""

from datetime import UTC, datetime


def timestamp_of(when: datetime) -> str:
    """Return a time to the second, as a Kubernetes ``Time`` is written; ``when`` has a time zone."""
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_timestamp_of(when: datetime) -> str:
    """Return a time to the microsecond, as a Kubernetes ``MicroTime`` is written; ``when`` has a time zone."""
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def unix_seconds(timestamp: str | None) -> float:
    """Return a time as Unix time in seconds, 0 where there is none or it cannot be read."""
    if not timestamp:
        return 0.0
    try:
        return datetime.fromisoformat(timestamp).timestamp()
    except (ValueError, OverflowError, OSError):
        return 0.0
