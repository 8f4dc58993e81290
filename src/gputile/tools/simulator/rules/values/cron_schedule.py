"""Tells when a CronJob makes a Job, by its schedule and time zone (as github.com/robfig/cron)."""

import re
import zoneinfo
from typing import Final

_DESCRIPTORS: Final = ("@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly")
_DURATION: Final = re.compile(r"[-+]?(0|((\d+(\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h))+)", re.ASCII)
_PART: Final = re.compile(r"(\d*)(\.\d*)?([^\d.]+)", re.ASCII)
_UNITS: Final = {  # ns
    **dict.fromkeys(("us", "µs", "μs"), 10**3),
    "ns": 1,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
}
_LONGEST: Final = (1 << 63) - 1  # ns
_MOST_DIGITS: Final = 18  # of a number that is computed with
_WORD: Final = re.compile(r"[\S\x1c-\x1f]+")  # what Go takes for no space, and Python does
_NUMBER: Final = re.compile(r"\+?\d{1,18}", re.ASCII)  # what an API server can count
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_LAST_DAY: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)  # of each month, in a leap year
_DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
# Each field's name, its least and largest number, and the numbers' names.
_FIELDS: Final[tuple[tuple[str, int, int, dict[str, int]], ...]] = (
    ("minute", 0, 59, {}),
    ("hour", 0, 23, {}),
    ("day of month", 1, 31, {}),
    ("month", 1, 12, {name: number for number, name in enumerate(_MONTHS, 1)}),
    ("day of week", 0, 6, {name: number for number, name in enumerate(_DAYS)}),
)


def broken_schedule(schedule: str) -> str | None:
    """Return the rule that a schedule breaks; None where it breaks none."""
    if schedule.startswith("@"):
        if schedule in _DESCRIPTORS:
            return None
        if schedule.startswith("@every "):
            duration = schedule.removeprefix("@every ")
            return _broken_duration(duration)
        return f"expected one of {', '.join(_DESCRIPTORS)}, @every DURATION, or 5 fields"
    parts = _WORD.findall(schedule)
    if len(parts) != len(_FIELDS):
        return "expected exactly 5 fields: minute, hour, day of month, month, day of week"
    found = (_broken_field(part, *field) for part, field in zip(parts, _FIELDS, strict=True))
    return next(filter(None, found), None)


def never_comes(schedule: str) -> bool:
    """Return whether a valid schedule only names days that no month of its own has, as the 30th of February.

    A day of the week that is named counts beside that of the month: one of the two has to come.
    """
    parts = _WORD.findall(schedule)
    if len(parts) != len(_FIELDS) or not _is_any(parts[4]) or _is_any(parts[2]):
        return False
    days, months = (_numbers(parts[i], *_FIELDS[i][1:]) for i in (2, 3))
    return not any(day <= _LAST_DAY[month - 1] for day in days for month in months)


def _is_any(text: str) -> bool:
    """Return whether a field of a schedule has a star, by which it does not name days; one with steps names some."""
    parts = (part.partition("/") for part in text.split(","))
    return any(bounds.partition("-")[0] in ("*", "?") and int(step or "1") == 1 for bounds, _, step in parts)


def _numbers(text: str, least: int, largest: int, names: dict[str, int]) -> set[int]:
    """Return the numbers that a valid field of a schedule names."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        bounds, slash, step = part.partition("/")
        first, _, last = bounds.partition("-")
        if first in ("*", "?"):
            ends = least, largest
        else:
            number = int(names.get(first.lower(), first))
            ends = number, int(names.get(last.lower(), last)) if last else largest if slash else number
        found.update(range(ends[0], ends[1] + 1, int(step) if slash else 1))
    return found


def _broken_duration(text: str) -> str | None:
    """Return why a text is no duration of Go's (``time.ParseDuration``), None where it is one."""
    if not _DURATION.fullmatch(text):
        return "@every needs a duration such as 1h30m"
    total = 0
    for whole, part, unit in _PART.findall(text.lstrip("+-")):
        digits = whole.lstrip("0")
        if len(digits) > _MOST_DIGITS + 1:
            return "@every takes no more than 2562047h"
        nanoseconds = int(digits or "0") * _UNITS[unit]
        fraction = part[1 : _MOST_DIGITS + 1]
        total += nanoseconds + int(fraction or "0") * _UNITS[unit] // 10 ** len(fraction)
    return "@every takes no more than 2562047h" if total > _LONGEST else None


def broken_time_zone(name: str) -> str | None:
    """Return the rule that a time zone's name breaks; None where it breaks none."""
    if not name or name.lower() == "local":
        return "must be a name of the IANA time zone database, such as Europe/Berlin"
    try:
        zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return "unknown time zone" if _has_zones() else None
    return None


def _has_zones() -> bool:
    """Return whether this machine has time zones at all."""
    try:
        zoneinfo.ZoneInfo("Europe/Berlin")
    except zoneinfo.ZoneInfoNotFoundError:
        return False
    return True


def _broken_field(text: str, name: str, least: int, largest: int, names: dict[str, int]) -> str | None:
    return next(filter(None, (_broken_range(part, name, least, largest, names) for part in text.split(","))), None)


def _broken_range(text: str, name: str, least: int, largest: int, names: dict[str, int]) -> str | None:
    if not text:
        return None  # an empty item between two commas is skipped
    bounds, slash, step = text.partition("/")
    if slash and (not _NUMBER.fullmatch(step) or int(step) == 0):
        return f"the step of the {name} must be a number of 1 or more, is {step[:20]!r}"
    if bounds.count("-") < 2 and bounds.partition("-")[0] in ("*", "?"):
        return None  # what stands behind "*-" is not read
    ends = [names.get(end.lower(), end) for end in bounds.split("-")]
    if len(ends) > 2 or any(isinstance(end, str) and not _NUMBER.fullmatch(end) for end in ends):
        words = f" or a name as {next(iter(names))}" if names else ""
        return f"the {name} must be *, a number{words}, or a range of them, is {text[:20]!r}"
    first, last = int(ends[0]), int(ends[-1])
    if not least <= first <= largest or not least <= last <= largest:
        return f"the {name} must be {least} to {largest}, is {text[:20]!r}"
    return f"the {name} {text[:20]!r} begins after its end" if first > last else None
