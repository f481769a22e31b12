"""What a file was when its rows were first looked at, to notice when it is written again.

The file may lie anywhere that fsspec knows. Two states differ if the file was replaced, written to
or cut short: by device, inode, size and time on this machine, and elsewhere by what the store says
of it.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

__all__ = ["FileState", "described_sources", "is_local"]

TELLING = (
    "size",
    "created",
    "mtime",
    "LastModified",
    "last_modified",
    "updated",
    "ETag",
    "etag",
    "md5Hash",
)
"""Entries that fsspec's file systems have for a file, of which some change when it is written."""


@dataclass(frozen=True)
class FileState:
    """The state of a file.

    Attributes
    ----------
    facts
        What tells it from other states.
    """

    facts: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, filesystem: Any, path: str) -> "FileState":
        """Look at a file.

        Raises
        ------
        OSError
            If it is not there.
        """
        if is_local(filesystem):
            status = os.stat(path)
            return cls(
                (
                    ("size", str(status.st_size)),
                    ("file", f"{status.st_dev} {status.st_ino}"),
                    ("time", str(status.st_mtime_ns)),
                )
            )
        filesystem.invalidate_cache(path)  # or it would say what it knows from before
        info = filesystem.info(path)
        return cls(tuple((name, str(info[name])) for name in TELLING if name in info))

    def check(self, filesystem: Any, path: str) -> None:
        """Refuse a file that has another state now.

        Raises
        ------
        RuntimeError
            Naming the file.
        """
        try:
            now = FileState.of(filesystem, path)
        except OSError as error:
            raise RuntimeError(_changed(path, "was removed")) from error
        if now == self:
            return
        before, after = dict(self.facts), dict(now.facts)
        change = "was written again"
        if before.get("size") != after.get("size"):
            change = f"had {before.get('size')} bytes and has {after.get('size')}"
        raise RuntimeError(_changed(path, change))


def described_sources(data: Any) -> dict[str, str]:
    """Describe the files of what was passed as data: path, bytes, and time of the last change."""
    given = data if isinstance(data, Mapping) else {"data": getattr(data, "source", data)}
    paths = {str(name): _path_of(source) for name, source in given.items()}
    return {name: _described(path) for name, path in paths.items() if path is not None}


def _path_of(source: Any) -> str | None:
    if isinstance(source, str | Path):
        return str(source) if "://" in str(source) else os.path.abspath(source)
    name = getattr(source, "filename", None)  # of a memory map
    return None if name is None else os.path.abspath(name)


def _described(path: str) -> str:
    states = list(_states(path))
    if not states:  # a pattern, or elsewhere
        return path
    when = datetime.fromtimestamp(max(state.st_mtime for state in states), UTC)
    size = sum(state.st_size for state in states)
    return f"{path}, {size:,} bytes of {when:%Y-%m-%d %H:%M:%S.%f}"


def _states(path: str) -> Iterator[os.stat_result]:
    """Look at a file, or at all files of a folder."""
    try:
        if not os.path.isdir(path):
            yield os.stat(path)
            return
        for folder, _, names in os.walk(path):
            for name in names:
                yield os.stat(os.path.join(folder, name))
    except OSError:  # not there, or not for us to see
        return


def _changed(path: str, change: str) -> str:
    return (
        f"{path} {change} since its rows were bound to the model, so that sums over them no longer "
        "hold. Do not change the file while it is sampled from. To sample from its present "
        "contents, make the step again."
    )


def is_local(filesystem: Any) -> bool:
    """Whether a file system is that of this machine."""
    protocol = filesystem.protocol
    return "file" in ((protocol,) if isinstance(protocol, str) else protocol)
