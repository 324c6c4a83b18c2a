"""The pytest plugin, used as users do: real pytest runs in folders of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import entry_points

import pytest

pytest_plugins = ["pytester"]

SHOP = """
from dray import App

app = App("shop", broker="sqlite:///real.db")

@app.task(retries=1)
def send(to: str) -> str:
    if to == "nobody":
        raise LookupError(to)
    return f"sent to {to}"
"""

ASYNC_TESTS = """
import asyncio, inspect, pytest

@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    if inspect.iscoroutinefunction(pyfuncitem.obj):
        names = inspect.signature(pyfuncitem.obj).parameters
        asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
        return True
"""
"""What pytest-asyncio and anyio do, in short."""


@pytest.fixture
def shop(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(shop=SHOP)
    pytester.makeini("[pytest]\ndray_app = shop:app\nfilterwarnings = error\n")
    pytester.syspathinsert()
    return pytester


def run(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", *options, timeout=120)


def test_the_plugin_is_found_by_itself() -> None:
    [found] = entry_points(group="pytest11", name="dray")
    assert found.value == "dray.testing.plugin"


def test_it_costs_next_to_nothing_who_does_not_use_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_nothing_is_loaded_before_it_is_needed(pytestconfig):
            assert pytestconfig.pluginmanager.has_plugin("dray")
            assert "dray.testing.plugin" in sys.modules
            loaded = {name for name in sys.modules if name.startswith("dray.")}
            facts = {"dray.errors", "dray.job", "dray.passwords", "dray.early_signals"}
            assert loaded <= {*facts, "dray.testing", "dray.testing.plugin"}
        """
    )
    run(pytester, "-W", "error").assert_outcomes(passed=1)


def test_importing_the_plugin_loads_no_asyncio() -> None:
    code = "import pytest, sys, json; before = set(sys.modules); import dray.testing.plugin; "
    code += "print(json.dumps(sorted(set(sys.modules) - before)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    loaded = set(json.loads(out))
    assert "dray.testing.plugin" in loaded
    assert loaded & {"asyncio", "dray.app", "dray.broker", "dray.worker", "logging", "sqlite3"} == set()


def test_the_app_of_the_ini_option_is_tested_without_touching_its_broker(shop: pytest.Pytester) -> None:
    shop.makepyfile(
        """
        from shop import app, send

        def test_drain(dray_app, dray_testing):
            assert dray_app is app
            job = send.enqueue("a@x.org")
            assert [info.args for info in dray_testing.enqueued()] == [("a@x.org",)]
            dray_testing.drain()
            assert job.get(timeout=0) == "sent to a@x.org"

        def test_every_test_starts_from_nothing(dray_testing):
            assert dray_testing.enqueued() == dray_testing.dead() == []

        def test_a_failing_job(dray_testing):
            job = send.enqueue("nobody")
            dray_testing.advance("1m")
            assert dray_testing.dead()[0].error.type == "LookupError"

        def test_outside_the_fixtures_the_app_is_itself():
            assert app.client is not None
            assert type(app.client.open).__name__ == "function"
        """
    )
    run(shop).assert_outcomes(passed=4)
    assert not (shop.path / "real.db").exists()


def test_raise_errors_fails_the_test_with_the_jobs_own_traceback(shop: pytest.Pytester) -> None:
    shop.makepyfile(
        """
        from shop import send

        def test_it(dray_testing):
            dray_testing.raise_errors = True
            send.enqueue("nobody")
            dray_testing.drain()
        """
    )
    result = run(shop)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*raise LookupError(to)", "E * LookupError: nobody"])


def test_async_tests_use_the_same_fixtures(shop: pytest.Pytester) -> None:
    shop.makeconftest(ASYNC_TESTS)
    shop.makepyfile(
        """
        import asyncio
        from shop import app, send

        async def test_awaited(dray_testing):
            job = await send.aenqueue("a@x.org")
            assert len(await dray_testing.adrain()) == 1
            assert await job == "sent to a@x.org"
            assert await dray_testing.aadvance(60) == []

        async def test_blocking(dray_testing):
            job = await send.aenqueue("a@x.org")
            dray_testing.drain()
            assert await job == "sent to a@x.org"

        async def test_worker(dray_worker):
            job = await send.aenqueue("a@x.org")
            assert await job.aget(timeout=30) == "sent to a@x.org"
        """
    )
    run(shop).assert_outcomes(passed=3)


def test_without_the_ini_option_there_is_a_new_app_for_every_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("number", [1, 2])
        def test_it(dray_app, dray_testing, number):
            @dray_app.task
            def work():
                return number

            job = work.enqueue()
            dray_testing.drain()
            assert job.get(timeout=0) == number
        """
    )
    run(pytester, "-W", "error").assert_outcomes(passed=2)


def test_an_app_that_cannot_be_found_is_told_in_one_line(shop: pytest.Pytester) -> None:
    shop.makeini("[pytest]\ndray_app = shop:nothing\n")
    shop.makepyfile("def test_it(dray_app): ...")
    result = run(shop)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*the ini option dray_app: 'shop:nothing'*it has app*"])


def test_a_fixture_of_ones_own_decides_which_app_is_tested(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        from dray import App

        billing = App("billing", broker="sqlite:///real.db")

        @billing.task
        def bill():
            return 1

        @pytest.fixture
        def dray_app():
            return billing

        def test_drain(dray_testing):
            assert dray_testing.app is billing
            job = bill.enqueue()
            dray_testing.drain()
            assert job.get(timeout=0) == 1

        def test_worker(dray_worker):
            assert bill.enqueue().get(timeout=30) == 1
        """
    )
    run(pytester, "-W", "error").assert_outcomes(passed=2)
    assert not (pytester.path / "real.db").exists()


def test_a_worker_runs_jobs_by_itself_and_stops_with_the_test(shop: pytest.Pytester) -> None:
    shop.makepyfile(
        """
        import threading
        import pytest
        from dray import DrayError
        from shop import send

        def test_it(dray_worker):
            assert send.enqueue("a@x.org").get(timeout=30) == "sent to a@x.org"
            assert send.using(delay=0.1).enqueue("b@x.org").get(timeout=30) == "sent to b@x.org"

        def test_no_thread_is_left():
            assert [thread.name for thread in threading.enumerate() if thread.name == "dray worker"] == []

        def test_the_clock_is_not_for_both(dray_testing, dray_worker):
            with pytest.raises(DrayError, match="by itself"):
                dray_testing.advance(60)
        """
    )
    run(shop).assert_outcomes(passed=3)


def test_a_worker_that_cannot_stop_fails_the_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import threading

        def test_it(dray_app, dray_worker):
            running = threading.Event()

            @dray_app.task
            def stubborn():
                running.set()
                threading.Event().wait(60)

            stubborn.enqueue()
            assert running.wait(30)
        """
    )
    result = run(pytester)
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*could not stop: in a thread still runs stubborn*"])
