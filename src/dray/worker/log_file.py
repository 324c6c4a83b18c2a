"""The log file of a worker. Its base class is in a large module, loaded only for workers that have one."""

from __future__ import annotations

import logging
from logging.handlers import WatchedFileHandler


class LogFile(WatchedFileHandler):
    """Opens a new file when the old one was moved away."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            super().emit(record)
        except OSError:  # its folder is gone, which must not stop the work
            self.handleError(record)
