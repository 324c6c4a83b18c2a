"""The file's path, its folders, the files beside it, and its file system."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import warnings
from pathlib import Path
from typing import Final

from dray.broker.sqlite.errors import os_fault
from dray.errors import BrokerWarning, InvalidInput

REMOTE: Final = re.compile(
    r"nfs4?|cifs|smb3|smbfs|9p|afs|ceph|lustre|glusterfs|gfs2|ocfs2|beegfs|gpfs|ncpfs|vboxsf|prl_fs|virtiofs"
    r"|fuse\.(sshfs|glusterfs|ceph|s3fs|rclone|gcsfuse|vmhgfs-fuse)"
)

_warned: set[Path] = set()


def resolve(path: str | os.PathLike[str]) -> Path:
    """The absolute path, symbolic links followed: SQLite puts the -wal beside the real file."""
    text = os.fspath(path)
    if not text or "\0" in text:
        raise InvalidInput("path", text, "name the database file")
    try:
        os.fsencode(text)
    except UnicodeEncodeError as error:
        raise InvalidInput("path", text, "a name that the file system can hold is allowed") from error
    try:
        place = Path(text).resolve()
        if place.is_dir():
            raise InvalidInput("path", text, "is a folder: name a file in it")
    except OSError as error:
        raise os_fault(error, Path(text)) from error
    except RuntimeError as error:
        raise InvalidInput("path", text, "its symbolic links go in a circle") from error
    return place


def create_file(path: Path) -> None:
    """Make the file, empty and private, and the folders above it, unless it is there."""
    try:
        if path.exists():
            return
        make_folders(path.parent)
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.exists():
                return
            # What a removed database left behind would be replayed into the new one. Under the lock no
            # other dray can be creating it, and without the file these can be in no proper use.
            for suffix in ("-wal", "-shm", "-journal"):
                Path(f"{path}{suffix}").unlink(missing_ok=True)
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            os.fsync(handle)
        finally:
            os.close(handle)
    except BlockingIOError:
        raise
    except OSError as error:
        raise os_fault(error, path) from error


def make_folders(folder: Path) -> None:
    if folder.is_dir():
        return
    make_folders(folder.parent)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(0o700)
        if folder.name == ".dray":
            (folder / ".gitignore").write_text("*\n")


def companions(name: str) -> tuple[int | None, int | None]:
    """The inodes of the -wal and the -shm file."""
    return inode_of(f"{name}-wal"), inode_of(f"{name}-shm")


def inode_of(path: str) -> int | None:
    try:
        return os.stat(path).st_ino  # noqa: PTH116 (see `Database._sound`)
    except OSError:
        return None


def size_of(path: str) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116 (see `Database._sound`)
    except OSError:
        return 0


def filesystem_of(path: str, mountinfo: str) -> str | None:
    """The type of the file system that holds an absolute path, by the text of /proc/self/mountinfo."""
    best, found = -1, None
    for line in mountinfo.splitlines():
        mount, _, source = line.partition(" - ")
        fields = mount.split(" ")
        if len(fields) < 5 or not source:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4]).rstrip("/")
        # Of two mounts on one point the later one hides the earlier.
        if (path == point or path.startswith(point + "/")) and len(point) >= best:
            best, found = len(point), source.split(" ")[0]
    return found


def mounts() -> str:
    """The mounted file systems on Linux, else nothing."""
    try:
        return Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape")
    except OSError:
        return ""


def warn_if_remote(path: Path, mountinfo: str) -> None:
    kind = filesystem_of(str(path), mountinfo)
    if kind and REMOTE.fullmatch(kind) and path not in _warned:
        _warned.add(path)
        warnings.warn(
            f"{path} is on a network file system ({kind}): WAL needs all processes on one machine, else jobs "
            "are lost; use a local disk, or Redis for several machines",
            BrokerWarning,
            stacklevel=3,
        )
