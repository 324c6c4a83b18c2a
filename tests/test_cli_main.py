"""The command `dray` as a whole: help, start, errors, and how it ends."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest
from shell import Shell

import dray
from dray.cli import main as run_main
from dray.cli.main import COMMAND_MODULES, COMMANDS, PIPE_CLOSED, cli

HEAVY = {
    *("asyncio", "rich", "sqlite3", "yaml", "logging", "socket", "subprocess", "multiprocessing", "ssl"),
    *(
        "importlib.metadata",
        "dray.app",
        "dray.broker",
        "dray.client.client",
        "dray.worker",
        "dray.demo",
        "textual",
    ),
}


def test_help_groups_the_commands(shell: Shell) -> None:
    text = shell.run("--help").out
    for section, commands in COMMANDS.items():
        assert f"{section}:" in text
        for name, (_, line) in commands.items():
            assert re.search(rf"^  {name} +{re.escape(line)}$", text, re.M), name


@pytest.mark.parametrize("name", list(COMMAND_MODULES))
def test_each_command_has_the_help_it_is_listed_with(shell: Shell, name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    [(_, line)] = [commands[name] for commands in COMMANDS.values() if name in commands]
    assert shell.run(name, "--help").out.startswith(f"Usage: dray {name}")
    assert command.name == name
    if isinstance(command, click.Group):
        assert command.help == line


@pytest.mark.parametrize("argument", ["--help", "--version", "-h"])
def test_help_starts_light(argument: str) -> None:
    code = (
        f"import sys; from dray.cli import main; main([{argument!r}]); print(*sys.modules, file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert HEAVY & set(run.stderr.split()) == set()


def test_looking_at_jobs_in_a_pipe_never_loads_what_draws_on_terminals(shell: Shell) -> None:
    shell.enqueue("add", 1)
    code = "import sys; from dray.cli import main; main(['jobs', 'ls']); print(*sys.modules, file=sys.stderr)"
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=shell.environ,
        cwd=shell.folder,
    )
    assert "add" in run.stdout
    assert not {name for name in run.stderr.split() if name.partition(".")[0] in ("rich", "pygments")}


def test_the_version_is_printed(shell: Shell) -> None:
    assert shell.run("--version").out == f"dray {dray.__version__}\n"


def test_the_script_and_the_module_are_the_same_command(shell: Shell) -> None:
    script = Path(sys.executable).with_name("dray")
    by_module = shell.spawn("--help")
    by_script = subprocess.run([script, "--help"], capture_output=True, text=True, check=True)
    assert by_script.stdout == by_module.out


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["wrker"], "no command is named 'wrker'; did you mean worker"),
        (["xyzzy"], "no command is named 'xyzzy'; `dray --help` lists them"),
        (["jobs", "lst"], "no command is named 'lst'; did you mean ls?"),
        (["dead", "reply"], "did you mean replay?"),
        (["queues", "stop"], "`dray queues --help` lists them"),
        (["workers", "l"], "did you mean ls?"),
        (["--nonsense"], "No such option"),
        (["jobs", "ls", "--broker"], "requires an argument"),
    ],
)
def test_a_wrong_call_ends_with_2_and_a_hint(shell: Shell, args: list[str], says: str) -> None:
    ended = shell.run(*args, code=2)
    assert says in ended.err
    assert "Usage: dray" in ended.err or "requires an argument" in ended.err
    assert ended.out == ""


@pytest.mark.parametrize("args", [[], ["queues"]])
def test_a_group_without_a_command_tells_its_help_once(shell: Shell, args: list[str]) -> None:
    ended = shell.run(*args, code=2)
    told = ended.out + ended.err
    assert told.count("Usage:") == 1
    assert "dray: Usage" not in told


def test_options_may_stand_before_or_after_the_command(shell: Shell) -> None:
    shell.enqueue("add", 1)
    url = f"sqlite:///{shell.folder}/.dray/dray.db"
    before = shell.run("--json", "--broker", url, "--namespace", "shop", "jobs", "ls")
    after = shell.run("jobs", "ls", "--json", "--broker", url, "--namespace", "shop")
    assert before.json == after.json != []
    assert shell.run("--namespace", "other", "jobs", "ls", "--namespace", "shop", "--json").json == after.json


# which app, which broker


def test_without_an_app_the_broker_is_enough(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.enqueue("add", 1)
    monkeypatch.chdir(tmp_path)
    url = f"sqlite:///{shell.folder}/.dray/dray.db"
    assert len(shell.json("jobs", "ls", "--broker", url)) == 1, "the only namespace is found by itself"
    assert len(shell.json("jobs", "ls", "--broker", url, "--namespace", "shop")) == 1
    assert shell.json("jobs", "ls", "--broker", url, "--namespace", "other") == []
    monkeypatch.setenv("DRAY_BROKER_URL", url)
    assert len(shell.json("queues", "ls")) == 1
    assert shell.json("workers", "ls") == []
    assert shell.json("dead", "ls") == []


def test_several_namespaces_have_to_be_told_apart(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.enqueue("add", 1)
    shell.run("--namespace", "other", "enqueue", "add", "2")
    (shell.folder / "dray.toml").write_text("")
    ended = shell.run("jobs", "ls", code=2)
    assert "several namespaces (other, shop)" in ended.err
    assert len(shell.json("jobs", "ls", "--namespace", "other")) == 1


def test_no_database_is_told_and_none_is_made(shell: Shell) -> None:
    for command in (["jobs", "ls"], ["dead", "ls"], ["queues", "ls"], ["workers", "ls"], ["why", "x"]):
        ended = shell.run(*command, code=1)
        assert "there is no database at" in ended.err
        assert "-A module:attribute" in ended.err
    assert not (shell.folder / ".dray").exists()


def test_the_app_of_a_settings_file_is_found_from_every_folder_below(shell: Shell) -> None:
    shell.enqueue("add", 1)
    inner = shell.folder / "deep" / "inside"
    inner.mkdir(parents=True)
    assert "add" in shell.spawn("jobs", "ls", folder=inner).out
    assert shell.spawn("enqueue", "add", "1", folder=inner).out.startswith("default:")


def test_broker_and_namespace_on_the_command_line_win_over_the_app(shell: Shell) -> None:
    url = f"sqlite:///{shell.folder}/elsewhere.db"
    shell.run("enqueue", "add", "1", "--broker", url, "--namespace", "ns")
    assert (shell.folder / "elsewhere.db").exists()
    assert not (shell.folder / ".dray").exists()
    assert len(shell.json("jobs", "ls", "--broker", url, "--namespace", "ns")) == 1


def test_a_broken_app_does_not_stop_who_names_broker_and_namespace(shell: Shell) -> None:
    shell.enqueue("add", 1)
    (shell.folder / "dray.toml").write_text('app = "no_such_module_here:app"\n')
    ended = shell.run("jobs", "ls", code=1)
    assert "there is no module 'no_such_module_here'" in ended.err
    assert "--broker URL and --namespace NAME work without the app" in ended.err
    url = f"sqlite:///{shell.folder}/.dray/dray.db"
    assert len(shell.json("jobs", "ls", "--broker", url, "--namespace", "shop")) == 1


@pytest.mark.parametrize(
    ("app", "says"),
    [
        ("nowhere_at_all:app", "there is no module 'nowhere_at_all': looked in"),
        ("broken_one:app", "line 3: ZeroDivisionError: division by zero"),
        ("broken_two:app", "SyntaxError"),
        ("empty_one:app", "it has no App at all"),
        ("folder/file.py", "write module:attribute, for example folder.file:app"),
        ("needs_more:app", "No module named 'not_installed_here'"),
    ],
)
def test_an_app_that_cannot_be_imported_says_why_and_where(shell: Shell, app: str, says: str) -> None:
    (shell.folder / "broken_one.py").write_text("x = 1\n\ny = x / 0\n")
    (shell.folder / "broken_two.py").write_text("def (:\n")
    (shell.folder / "empty_one.py").write_text("app = 5\n")
    (shell.folder / "needs_more.py").write_text("import not_installed_here\n")
    ended = shell.run("-A", app, "enqueue", "add", "1", code=1)
    assert says in ended.err
    assert "Traceback" not in ended.err
    assert (
        "Traceback"
        in shell.spawn("-A", app, "enqueue", "add", "1", code=None, environ={"DRAY_DEBUG": "1"}).err
    )


@pytest.mark.parametrize("command", [("enqueue", "add"), ("worker",), ("scheduler",)])
def test_commands_that_need_an_app_say_how_to_name_one(shell: Shell, command: tuple[str, ...]) -> None:
    (shell.folder / "dray.toml").write_text("")
    ended = shell.run(*command, code=2)
    assert "which app? Give -A module:attribute, set DRAY_APP" in ended.err


@pytest.mark.parametrize("command", [("enqueue", "add", "1"), ("worker",), ("jobs", "ls"), ("bench",)])
def test_memory_is_refused_with_an_explanation(shell: Shell, command: tuple[str, ...]) -> None:
    ended = shell.run("--broker", "memory://", *command, code=1)
    assert "memory:// lives inside one process" in ended.err


# errors


def test_a_file_that_is_not_drays_is_told_with_its_url(shell: Shell) -> None:
    other = shell.folder / "other.db"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE x (y)")
    connection.close()
    ended = shell.run("jobs", "ls", "--broker", f"sqlite:///{other}", "--namespace", "x", code=1)
    assert "another program" in ended.err
    assert f"broker: sqlite:///{other} (tried for" in ended.err
    (shell.folder / "noise.db").write_bytes(b"noise" * 1000)
    shell.run("jobs", "ls", "--broker", f"sqlite:///{shell.folder}/noise.db", "--namespace", "x", code=1)


def test_a_locked_file_is_told_with_how_long_it_was_tried(shell: Shell) -> None:
    shell.enqueue("add", 1)
    file = shell.folder / ".dray" / "dray.db"
    holder = sqlite3.connect(file, isolation_level=None)
    try:
        holder.execute("BEGIN EXCLUSIVE")
        url = f"sqlite:///{file}?timeout=200ms"
        began = time.monotonic()
        ended = shell.run("enqueue", "add", "1", "--broker", url, code=1)
        assert time.monotonic() - began < 30
    finally:
        holder.close()
    assert "(tried for 0." in ended.err
    assert "`dray doctor` looks closer" in ended.err
    assert "Traceback" not in ended.err


def test_passwords_are_never_printed(shell: Shell) -> None:
    # A worker on a server that is away would wait for it.
    commands = {
        "redis://me:s3cret@127.0.0.1:1/0": (["jobs", "ls"], ["doctor"], ["doctor", "--settings"]),
        "nonsense://me:s3cret@host": (["jobs", "ls"], ["doctor"], ["worker"], ["doctor", "--settings"]),
    }
    for url, tried in commands.items():
        for command in tried:
            ended = shell.run(*command, "--broker", url, code=None)
            assert "s3cret" not in ended.out + ended.err
            assert "Traceback" not in ended.err


def test_wrong_settings_are_all_told_and_end_with_2(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAY_LEASE", "soon")
    monkeypatch.setenv("DRAY_RETRIES", "many")
    ended = shell.run("jobs", "ls", code=2)
    assert "lease='soon'" in ended.err
    assert "retries='many'" in ended.err


def test_an_unknown_variable_is_a_line_of_warning(shell: Shell) -> None:
    shell.enqueue("add", 1)
    ended = shell.spawn("jobs", "ls", environ={"DRAY_QUEUE": "x"})
    assert ended.err == "dray: warning: DRAY_QUEUE: no setting has this name: did you mean DRAY_QUEUES?\n"


def test_output_that_nobody_reads_any_more_is_no_error(shell: Shell) -> None:
    app = shell.app()
    app.enqueue_many([app.tasks["add"].call(n) for n in range(3000)])
    app.close()
    command = [sys.executable, "-m", "dray", "jobs", "ls", "--limit", "3000"]
    child = subprocess.Popen(
        command, cwd=shell.folder, env=shell.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert child.stdout is not None
    assert child.stderr is not None
    assert child.stdout.readline().startswith(b"ID ")
    child.stdout.close()
    said = child.stderr.read()
    child.stderr.close()
    assert child.wait(60) == PIPE_CLOSED
    assert said == b""


def test_text_that_the_terminal_cannot_show_is_no_error(shell: Shell) -> None:
    shell.enqueue("send", "ünï", description="Größe ∞")
    for codec in ("ascii", "cp1252"):
        shell.spawn("jobs", "ls", environ={"PYTHONIOENCODING": codec})
        listed = shell.spawn("jobs", "ls", "--json", environ={"PYTHONIOENCODING": codec}).json
        assert listed[0]["description"] == "Größe ∞"


def test_an_interrupt_ends_with_130(shell: Shell) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "dray", "enqueue", "add", "1", "--wait"],
        cwd=shell.folder,
        env=shell.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stderr is not None
    assert "waiting" in child.stderr.readline()
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert err.strip() == "dray: stopped"


def test_main_returns_its_exit_code_and_never_exits_by_itself(shell: Shell) -> None:
    assert run_main(["--version"]) == 0
    assert run_main(["nonsense"]) == 2
    assert run_main([]) in (0, 2)


# terminals


def on_terminal(
    shell: Shell, *args: str, answer: str = "", environ: dict[str, str] | None = None
) -> tuple[int, str]:
    """Run the command on a pseudo terminal; what it showed, and its exit code."""
    ours, theirs = pty.openpty()
    env = {**shell.environ, "TERM": "xterm-256color", "COLUMNS": "160", **(environ or {})}
    child = subprocess.Popen(
        [sys.executable, "-m", "dray", *args],
        cwd=shell.folder,
        env=env,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    asked = False
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        ready, _, _ = select.select([ours], [], [], 0.1)
        if ready:
            try:
                data = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            if not data:
                break
            shown += data
        if answer and not asked and b"[y/N]" in shown:
            os.write(ours, answer.encode())
            asked = True
        if not ready and child.poll() is not None:
            break
    os.close(ours)
    return child.wait(60), shown.decode()


def test_on_a_terminal_there_are_colours_unless_no_color_is_set(shell: Shell) -> None:
    shell.enqueue("add", 1)
    code, shown = on_terminal(shell, "jobs", "ls")
    assert code == 0
    assert "\x1b[" in shown
    assert "ready" in shown
    code, shown = on_terminal(shell, "jobs", "ls", environ={"NO_COLOR": "1"})
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]", shown)
    code, shown = on_terminal(shell, "jobs", "xyzzy", environ={"NO_COLOR": "1"})
    assert code == 2
    assert "\x1b" not in shown
    code, shown = on_terminal(shell, "jobs", "ls", environ={"TERM": "dumb"})
    assert "\x1b" not in shown


def test_an_id_stays_in_one_piece_in_a_narrow_terminal(shell: Shell) -> None:
    id = shell.enqueue("add", 1, description="a long story " * 10)
    code, shown = on_terminal(shell, "jobs", "ls", environ={"COLUMNS": "40", "NO_COLOR": "1"})
    assert code == 0
    assert id in shown


def test_on_a_terminal_a_change_by_filter_is_asked_about(shell: Shell) -> None:
    for n in range(3):
        shell.enqueue("add", n)
    code, shown = on_terminal(shell, "jobs", "cancel", "--task", "add", answer="n\r")
    assert code == 130
    assert "cancel 3 jobs? [y/N]" in shown
    assert len(shell.json("jobs", "ls", "--state", "ready")) == 3
    code, shown = on_terminal(shell, "jobs", "cancel", "--task", "add", answer="y\r")
    assert code == 0
    assert "cancel: 3 jobs" in shown
    code, shown = on_terminal(shell, "jobs", "cancel", "--task", "add")
    assert "cancel: 0 jobs" in shown


def test_json_on_a_terminal_has_no_colours(shell: Shell) -> None:
    shell.enqueue("add", 1)
    code, shown = on_terminal(shell, "jobs", "ls", "--json")
    assert code == 0
    assert "\x1b" not in shown


def test_list_is_another_word_for_ls(shell: Shell) -> None:
    shell.enqueue("add", 1)
    assert shell.run("jobs", "list").out == shell.run("jobs", "ls").out
