"""Where the file lies: any path a system allows, private, and on a local disk."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest
from sqlite_file import bodies, opened, put

from dray.broker.sqlite.path import filesystem_of, warn_if_remote
from dray.errors import BrokerWarning, InvalidInput


def test_what_it_creates_is_private(tmp_path: Path, layout: Path) -> None:
    path = tmp_path / "a" / ".dray" / "jobs.db"
    db = opened(path, layout)
    put(db)
    assert {entry.name for entry in path.parent.iterdir()} == {
        ".gitignore",
        "jobs.db",
        "jobs.db-wal",
        "jobs.db-shm",
    }
    assert (path.parent / ".gitignore").read_text() == "*\n"
    for file in path.parent.glob("jobs.db*"):
        assert file.stat().st_mode & 0o777 == 0o600, file
    for folder in (path.parent, path.parent.parent):
        assert folder.stat().st_mode & 0o777 == 0o700
    db.close()


@pytest.mark.parametrize("folder", [".dray", "other"])
def test_only_a_dray_folder_of_its_own_is_hidden_from_git(tmp_path: Path, layout: Path, folder: str) -> None:
    if folder == ".dray":
        (tmp_path / folder).mkdir()
    opened(tmp_path / folder / "jobs.db", layout).close()
    assert [entry.name for entry in (tmp_path / folder).iterdir()] == ["jobs.db"]


@pytest.mark.parametrize(
    "name", ["with space", "ünï-çødé", "a?mode=memory", "100%", "%41", "a#b", "a&b", ":memory:"]
)
def test_odd_names_are_plain_names(tmp_path: Path, layout: Path, name: str) -> None:
    db = opened(tmp_path / name, layout)
    put(db)
    db.close()
    assert (tmp_path / name).stat().st_size > 0
    assert {entry.name for entry in tmp_path.iterdir()} == {name, "layout"}


def test_a_name_that_is_not_text_works(tmp_path: Path, layout: Path) -> None:
    db = opened(tmp_path / os.fsdecode(b"caf\xe9"), layout)
    put(db)
    put(db)
    assert (os.fsencode(tmp_path) + b"/caf\xe9-wal") in [os.fsencode(p) for p in tmp_path.iterdir()]
    db.close()


def test_a_relative_path_is_resolved_once(
    tmp_path: Path, layout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    db = opened("jobs.db", layout)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    put(db)
    assert db.path == tmp_path / "jobs.db"
    assert bodies(db) == ["x"]
    db.close()


def test_a_symbolic_link_leads_to_the_real_file(tmp_path: Path, path: Path, layout: Path) -> None:
    opened(path, layout).close()
    (tmp_path / "link.db").symlink_to(path)
    linked, direct = opened(tmp_path / "link.db", layout), opened(path, layout)
    put(linked)
    assert bodies(direct) == ["x"]
    linked.close()
    direct.close()


def test_unusable_paths_are_refused_before_anything_is_made(tmp_path: Path, layout: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for bad in (
        "",
        "a\0b",
        tmp_path,
        tmp_path / "file" / "jobs.db",
        tmp_path / ("n" * 300),
        tmp_path / "loop",
    ):
        with pytest.raises(InvalidInput, match="path="):
            opened(bad, layout)
    assert {entry.name for entry in tmp_path.iterdir()} == {"file", "loop", "layout"}


MOUNTS = r"""
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:26 / /mnt/my\040share rw - nfs4 server:/export rw,vers=4.2
31 22 0:27 / /srv/data rw master:3 propagate_from:2 - cifs //host/share rw
32 31 254:0 /var/local /srv/data/local rw - ext4 /dev/vda rw
33 22 0:28 / /over rw - ext4 /dev/vdb rw
34 22 0:29 / /over rw - fuse.sshfs host: rw
35 22 0:30 / /tab\011and\134slash rw - tmpfs tmpfs rw
broken line
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/jobs.db", "ext4"),
        ("/mnt/my share/a/jobs.db", "nfs4"),
        ("/mnt/my share-not/jobs.db", "ext4"),
        ("/srv/data/me/jobs.db", "cifs"),
        ("/srv/database/jobs.db", "ext4"),
        ("/srv/data/local/jobs.db", "ext4"),
        ("/over/jobs.db", "fuse.sshfs"),
        ("/tab\tand\\slash/jobs.db", "tmpfs"),
    ],
)
def test_the_file_system_is_that_of_the_longest_mount(path: str, kind: str) -> None:
    assert filesystem_of(path, MOUNTS) == kind


def test_nothing_is_known_without_a_mount_table() -> None:
    assert filesystem_of("/jobs.db", "") is None


def test_a_network_file_system_is_warned_about_once() -> None:
    with pytest.warns(BrokerWarning, match=r"nfs4.*local disk"):
        warn_if_remote(Path("/mnt/my share/jobs.db"), MOUNTS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_remote(Path("/mnt/my share/jobs.db"), MOUNTS)
        warn_if_remote(Path("/var/jobs.db"), MOUNTS)
