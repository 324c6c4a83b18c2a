"""Settings: what they are (`describe`), where they come from (`load`), and their values (`Settings`)."""

from __future__ import annotations

from dray.settings.forms import format_size, hide_password, parse_size
from dray.settings.model import SCHEDULING_MODES, Settings, cores
from dray.settings.sources import Loaded, load, override
from dray.settings.table import SettingInfo, describe, show

__all__ = [
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
