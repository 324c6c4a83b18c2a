"""Log lines of workers, read back by people and by programs."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

import pytest

from dray.worker.logs import ConsoleFormatter, JsonFormatter


def record(message: str, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("dray.worker", logging.WARNING, __file__, 1, message, (), None)
    vars(made).update(extra)
    return made


def test_a_json_line_carries_the_job() -> None:
    line = json.loads(JsonFormatter().format(record("it failed", job="q:1", task="send", attempt=2)))
    assert line["message"] == "it failed"
    assert (line["job"], line["task"], line["attempt"]) == ("q:1", "send", 2)
    assert (line["level"], line["logger"]) == ("warning", "dray.worker")
    assert line["time"].endswith("Z")


@pytest.mark.parametrize("text", ["two\nlines", "half a \udc80 pair", '"quoted"', "\x00"])
def test_whatever_is_logged_is_one_line_of_json(text: str) -> None:
    line = JsonFormatter().format(record(text, job=object()))
    assert "\n" not in line
    assert json.loads(line)["level"] == "warning"


def test_an_exception_is_part_of_the_line() -> None:
    made = record("it failed")
    try:
        raise ValueError("no")
    except ValueError:
        made.exc_info = sys.exc_info()
    line = JsonFormatter().format(made)
    assert "\n" not in line
    assert json.loads(line)["traceback"].endswith("ValueError: no")


def test_a_line_for_people_begins_with_the_time() -> None:
    time, level, rest = ConsoleFormatter().format(record("it failed")).split(maxsplit=2)
    assert time.count(":") == 2
    assert (level, rest) == ("WARNING", "dray.worker: it failed")


@pytest.mark.parametrize(("before", "shown"), [("", True), ("logging.basicConfig(level=40);", False)])
def test_logging_that_the_app_has_set_up_is_left_alone(before: str, shown: bool) -> None:
    program = (
        f"import logging; {before} from dray.worker import logs; from dray.settings import Settings;"
        "logs.set_up(Settings(broker_url='', namespace='', log_format='json'));"
        "logging.getLogger('elsewhere').info('hello')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ("hello" in done.stderr) is shown
