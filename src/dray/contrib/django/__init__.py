"""dray as a backend of Django's tasks: `django.tasks` (Django 6), or the package django-tasks before it.

    INSTALLED_APPS = [..., "dray.contrib.django"]
    TASKS = {"default": {"BACKEND": "dray.contrib.django.DrayBackend", "OPTIONS": {"APP": "proj.jobs:app"}}}

framework     the names of `django.tasks`, or of the package django-tasks
task          a Django task with the options of dray
result        a job as a `TaskResult`
run           runs a Django task as a job
backend       the backend: enqueues, reads results, checks its settings
worker        imported by workers: sets up Django, and registers its tasks
apps          the Django app
management/   `python manage.py dray ...`
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dray.contrib.django.backend import DrayBackend

__all__ = ["DrayBackend"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from dray.contrib.django.backend import DrayBackend  # Django imports this package before it is set up

    return DrayBackend
