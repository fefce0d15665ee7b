"""Log lines as text for a terminal or as JSON for a collector.

A structured event is a log record whose message is the event's name and whose
``fields`` (``extra={"fields": {...}}``) are its values.
"""

import json
import logging
import re

_SECRET = re.compile(
    r"(/(?:join|shared|sign-in/link)/)[^/\s\"'\\]+|\b(loom_)[\w-]{43}|\b(whsec_)[\w+/=]+"
)


def without_secrets(line: str) -> str:
    """The line without what opens an invitation, a shared session or somebody's account,
    or signs as somebody: Django names the address of each page that it refuses."""
    return _SECRET.sub(r"\1\2\3…", line)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    fields = getattr(record, "fields", None)
    return fields if isinstance(fields, dict) else {}


class TextFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        return without_secrets(super().format(record))

    def formatMessage(self, record: logging.LogRecord) -> str:
        pairs = "".join(f" {name}={value}" for name, value in _fields(record).items())
        return super().formatMessage(record) + pairs


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record),
            "level": record.levelname,
            "logger": record.name,
            "event": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return without_secrets(json.dumps(line, ensure_ascii=False, default=str))
