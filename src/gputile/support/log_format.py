"""Sets up the log of a component, as JSON or as text.

The module does not import the metrics, because the gateway of each node has a log but no metrics.
"""

import logging
import sys
from enum import StrEnum

import msgspec


class LogFormat(StrEnum):
    JSON = "json"
    TEXT = "text"


_ORDINARY = frozenset(vars(logging.makeLogRecord({}))) | {
    "message",
    "asctime",
    "color_message",
    "taskName",
}


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "ts": round(record.created, 6),
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": record.getMessage(),
            **{key: value for key, value in vars(record).items() if key not in _ORDINARY},
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=repr).decode()


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        # The fields are read first, because formatting adds attributes to the record.
        fields = [f"{key}={value}" for key, value in vars(record).items() if key not in _ORDINARY]
        return " ".join([super().format(record), *fields])


def set_up_logging(log_format: LogFormat, verbose: bool) -> None:
    handler = logging.StreamHandler(sys.stderr)
    text = _TextFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(_JsonFormatter() if log_format is LogFormat.JSON else text)
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO, handlers=[handler], force=True
    )
