"""The Django app: system checks of the backends, and `python manage.py dray`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.apps import AppConfig
from django.core import checks


class DrayConfig(AppConfig):
    name = "dray.contrib.django"
    label = "dray"
    verbose_name = "dray"

    def ready(self) -> None:
        checks.register(_check_backends, "dray")


def _check_backends(**kwargs: Any) -> Iterable[checks.CheckMessage]:
    from dray.contrib.django.backend import DrayBackend
    from dray.contrib.django.framework import task_backends

    for backend in task_backends.all():
        if isinstance(backend, DrayBackend):
            yield from backend.check(**kwargs)
