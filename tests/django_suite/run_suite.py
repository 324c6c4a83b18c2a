"""Runs Django's own tests of tasks against DrayBackend: `python run_suite.py FOLDER`.

The broker is that of DRAY_BROKER_URL. FOLDER is `tests` of Django's source distribution. Its classes are run
unchanged, as subclasses that only name our backend in the settings.

`NOT_OURS` lists the tests that an outside backend cannot pass, each with the reason.
"""

from __future__ import annotations

import sys
import unittest
from typing import ClassVar

sys.path.insert(0, sys.argv[1])
DRAY = {"BACKEND": "outside.Store", "OPTIONS": {"APP": "outside:app"}}

import django  # noqa: E402
from django.conf import settings  # noqa: E402

settings.configure(
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    USE_TZ=True,
    TASKS={"default": {**DRAY, "QUEUES": []}},
)
django.setup()

from django.test import override_settings  # noqa: E402
from django.test.runner import DiscoverRunner  # noqa: E402
from tasks import test_dummy_backend, test_immediate_backend, test_tasks  # noqa: E402

NOT_OURS = {
    "Tasks.test_using_correct_backend": "wants an instance of Django's own class",
    "Tasks.test_get_backend": "wants an instance of Django's own class",
    "Queue.test_using_correct_backend": "wants an instance of Django's own class",
    "Queue.test_refresh_result": "changes the result in the memory of Django's own backend",
    "Queue.test_refresh_result_async": "changes the result in the memory of Django's own backend",
    "Run.test_using_correct_backend": "wants an instance of Django's own class",
    "Run.test_throws_keyboard_interrupt": "a worker outlives it: the task fails, as with any exception",
    "Run.test_cannot_get_result": "we can",
    "Run.test_cannot_refresh_result": "we can",
    "Run.test_cannot_pass_run_after": "we can",
}


AT_ONCE = {**DRAY, "BACKEND": "outside.RunAtOnce", "QUEUES": []}


@override_settings(
    TASKS={
        "default": {**DRAY, "QUEUES": ["default", "queue_1"]},
        "immediate": AT_ONCE,
        "missing": {"BACKEND": "does.not.exist"},
    },
    USE_TZ=True,
)
class Tasks(test_tasks.TaskTestCase):  # type: ignore[misc]
    pass


@override_settings(TASKS={"default": {**DRAY, "QUEUES": []}})
class Queue(test_dummy_backend.DummyBackendTestCase):  # type: ignore[misc]
    pass


@override_settings(TASKS={"default": AT_ONCE})
class Run(test_immediate_backend.ImmediateBackendTestCase):  # type: ignore[misc]
    databases: ClassVar[set[str]] = {"default"}


def main() -> int:
    suite, left_out = unittest.TestSuite(), set()
    for case in (Tasks, Queue, Run):
        for method in unittest.defaultTestLoader.getTestCaseNames(case):
            name = f"{case.__name__}.{method}"
            left_out.add(name) if name in NOT_OURS else suite.addTest(case(method))
    unknown = set(NOT_OURS) - left_out
    result = DiscoverRunner(verbosity=1).run_suite(suite)
    print(
        f"{result.testsRun - len(result.failures) - len(result.errors)} passed, "
        f"{len(result.failures) + len(result.errors)} failed"
    )
    return 1 if unknown or not result.wasSuccessful() or result.testsRun < 64 else 0


if __name__ == "__main__":
    sys.exit(main())
