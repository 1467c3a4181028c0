"""Log lines on stderr: text for people, or a JSON object each for collectors."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

LEVELS = ("critical", "error", "warning", "info", "debug")
FORMATS = ("text", "json")

_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class _JsonFormatter(logging.Formatter):
    """The fields `time` (RFC 3339, UTC), `level`, `logger`, `message`, and `exception` with a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)  # escapes lone surrogates, which text of clients may have


def configure(level: str, format: str) -> None:
    """Sets up the process's log. `level` is one of `LEVELS`, `format` one of `FORMATS`."""
    handler = logging.StreamHandler()
    handler.setFormatter(_JsonFormatter() if format == "json" else logging.Formatter(_TEXT))
    logging.basicConfig(level=level.upper(), handlers=[handler])


def tell(message: str, level: int = logging.INFO) -> None:
    """A line on stderr, also below the log's level: where the process listens, or why it ends. `level` is that of the
    line for collectors."""
    if format_in_use() == "json":
        record = logging.LogRecord("slipstream", level, "", 0, message, None, None)
        message = _JsonFormatter().format(record)
    print(message, file=sys.stderr, flush=True)


def format_in_use() -> str:
    """The format of this process's log, for a process that it starts."""
    is_json = any(isinstance(handler.formatter, _JsonFormatter) for handler in logging.getLogger().handlers)
    return "json" if is_json else "text"
