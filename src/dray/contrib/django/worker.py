"""Sets up Django in a worker, and registers the tasks of every `tasks` module: see the setting `imports`."""

from __future__ import annotations

import django
from django.apps import apps
from django.utils.module_loading import autodiscover_modules

if not apps.ready:
    django.setup()

from dray.contrib.django.backend import DrayBackend
from dray.contrib.django.framework import task_backends

autodiscover_modules("tasks")
for _backend in task_backends.all():
    if isinstance(_backend, DrayBackend):
        _ = _backend.app  # registers the tasks that are defined
