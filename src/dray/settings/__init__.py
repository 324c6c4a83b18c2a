"""Settings: their table (`describe`), their sources (`load`), and their values (`Settings`).

queue_choice  Which queues a worker serves: names, patterns, or those of the app's tasks
forms         Kinds of values: how text is read, what is allowed, how a value is shown
model         `Settings`: the values a program runs with
table         Every setting with its form, its default and one sentence of help
files         The settings file of a project, and whose files are trusted
sources       Keyword, environment, file and default brought together and checked
"""

from __future__ import annotations

from dray.passwords import hide_password
from dray.settings.forms import format_size, parse_size
from dray.settings.model import AUTO_MOST, AUTO_START, SCHEDULING_MODES, Settings, cores
from dray.settings.sources import Loaded, load, override
from dray.settings.table import SettingInfo, describe, show

__all__ = [
    "AUTO_MOST",
    "AUTO_START",
    "SCHEDULING_MODES",
    "Loaded",
    "SettingInfo",
    "Settings",
    "cores",
    "describe",
    "format_size",
    "hide_password",
    "load",
    "override",
    "parse_size",
    "show",
]
