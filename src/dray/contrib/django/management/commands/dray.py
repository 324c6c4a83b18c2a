"""`python manage.py dray worker` and every other command of dray, for the app that TASKS names."""

from __future__ import annotations

import os
import sys
from argparse import REMAINDER, ArgumentParser
from typing import Any, ClassVar

from django.core.management.base import BaseCommand, CommandError

from dray.cli import main
from dray.contrib.django.backend import DrayBackend
from dray.contrib.django.framework import task_backends

WORKER = "dray.contrib.django.worker"


class Command(BaseCommand):
    help = "Runs a command of dray for this project: manage.py dray worker, manage.py dray jobs ls, ..."
    requires_system_checks: ClassVar[list[str]] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--backend", default="default", help="the alias in TASKS")
        parser.add_argument("command", nargs=REMAINDER, help="as after `dray`")

    def handle(self, *args: Any, backend: str, command: list[str], **options: Any) -> None:
        chosen = task_backends[backend]
        if not isinstance(chosen, DrayBackend):
            raise CommandError(f"TASKS[{backend!r}] is no DrayBackend")
        os.environ.setdefault("DRAY_APP", chosen.options["APP"])
        imports = os.environ.get("DRAY_IMPORTS", "")
        if WORKER not in imports:
            os.environ["DRAY_IMPORTS"] = f"{imports},{WORKER}".strip(",")
        sys.exit(main(command))
