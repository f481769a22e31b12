"""What a file was when its rows were first looked at, to notice when it is written again.

The file may lie anywhere that fsspec knows. Two states differ if the file was replaced, written to
or cut short: by device, inode, size and time on this machine, and elsewhere by what the store says
of it.
"""

import os
from dataclasses import dataclass
from typing import Any

__all__ = ["FileState", "is_local"]

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


def _changed(path: str, change: str) -> str:
    return (
        f"{path} {change} since its rows were bound to the model, so that sums over them no longer "
        "hold. Leave the file alone while it is sampled from; make the step again to sample from "
        "what it holds now."
    )


def is_local(filesystem: Any) -> bool:
    """Whether a file system is that of this machine."""
    protocol = filesystem.protocol
    return "file" in ((protocol,) if isinstance(protocol, str) else protocol)
