"""Settings and folders of another user are not followed, unless they are named as trusted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from shell import Shell

from dray import App
from dray.errors import InvalidSettings
from dray.settings import Loaded, load

OTHER = 54321


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let it be another user's. Only root can; anybody else becomes another user instead."""
    if os.geteuid() == 0:
        os.chown(path, OTHER, -1, follow_symlinks=False)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: OTHER)


def here(folder: Path, **environ: str) -> Loaded:
    return load({}, environ=environ, start=folder)


FILES = {
    "dray.toml": 'app = "evil:app"\n',
    "dray.yaml": "retries: 7\n",
    "pyproject.toml": "[tool.dray]\nretries = 7\n",
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("whose", ["file", "folder", "link"])
def test_settings_of_another_user_are_refused_with_what_would_allow_them(
    name: str, whose: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").write_text(FILES[name])
    if whose == "link":
        (tmp_path / name).symlink_to(tmp_path / "real")
    else:
        (tmp_path / name).write_text(FILES[name])
    inner = tmp_path / "inner"
    inner.mkdir()
    assert here(inner).folder == tmp_path
    give_away(tmp_path if whose == "folder" else tmp_path / name, monkeypatch)
    with pytest.raises(InvalidSettings, match="belongs to another user") as caught:
        here(inner)
    assert f"set DRAY_TRUST_FOLDER={tmp_path}" in str(caught.value)
    for trusted in (str(tmp_path), "*", f"/elsewhere{os.pathsep}{tmp_path}/"):
        assert here(inner, DRAY_TRUST_FOLDER=trusted).folder == tmp_path
    with pytest.raises(InvalidSettings):
        here(inner, DRAY_TRUST_FOLDER=str(inner))


def test_what_says_nothing_of_dray_may_be_anybodys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    for path in (tmp_path / "pyproject.toml", tmp_path):
        give_away(path, monkeypatch)
    assert here(tmp_path, DRAY_BROKER_URL="redis://h").settings.broker_url == "redis://h"


@pytest.mark.parametrize("whose", [".", ".dray"])
def test_the_embedded_broker_in_a_folder_of_another_user_is_not_opened(
    whose: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".dray").mkdir()
    monkeypatch.chdir(tmp_path)
    give_away(tmp_path / whose, monkeypatch)
    app = App("shop", accept_unknown_tasks=True)  # tests of it in memory, and other brokers, work
    with pytest.raises(InvalidSettings, match="belongs to another user"):
        app.enqueue("t")
    assert list((tmp_path / ".dray").iterdir()) == []
    monkeypatch.setenv("DRAY_TRUST_FOLDER", str(tmp_path))
    app.enqueue("t")
    assert (tmp_path / ".dray" / "dray.db").exists()
    app.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("command", [["jobs", "ls"], ["worker", "--burst"], ["queues", "ls"], ["doctor"]])
def test_commands_do_not_follow_the_folder_of_another_user(command: list[str], shell: Shell) -> None:
    (shell.folder / ".dray").mkdir(exist_ok=True)
    os.chown(shell.folder / ".dray", OTHER, -1)
    ended = shell.run(*command, code=None)
    assert ended.code in (1, 2)
    assert "belongs to another user" in ended.out + ended.err
    assert "DRAY_TRUST_FOLDER" in ended.out + ended.err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be who sudo made them")
def test_root_by_sudo_follows_what_belongs_to_who_called_sudo(tmp_path: Path) -> None:
    (tmp_path / "dray.toml").write_text("retries = 7\n")
    os.chown(tmp_path / "dray.toml", OTHER, -1)
    assert here(tmp_path, SUDO_UID=str(OTHER)).settings.retries == 7
    with pytest.raises(InvalidSettings):
        here(tmp_path, SUDO_UID=str(OTHER + 1))


def test_files_of_root_are_followed_by_everybody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        pytest.skip("the files here are not root's")
    (tmp_path / "dray.toml").write_text("retries = 7\n")
    monkeypatch.setattr(os, "geteuid", lambda: OTHER)
    assert here(tmp_path).settings.retries == 7


@pytest.mark.parametrize("name", FILES)
def test_a_pipe_in_the_place_of_a_settings_file_is_refused_instead_of_waited_for(
    name: str, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(InvalidSettings, match="no regular file"):
        here(tmp_path)
