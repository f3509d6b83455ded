"""Files in memory: the storage of tests, and of a `TestDriver`."""

from __future__ import annotations

from strandline.changelog.errors import LogLocked
from strandline.changelog.local_file import Bytes
from strandline.changelog.storage import File, Lock


class MemoryStorage:
    """A folder in memory. Its files survive `crash`, as those on disk survive a process crash."""

    def __init__(self) -> None:
        self._files: dict[str, bytearray] = {}
        self._locked: set[str] = set()

    def create(self, path: str) -> File:
        if path in self._files:
            raise FileExistsError(path)
        self._files[path] = bytearray()
        return MemoryFile(self._files[path])

    def open(self, path: str, *, writable: bool = False) -> File:
        if path not in self._files:
            raise FileNotFoundError(path)
        return MemoryFile(self._files[path])

    def rename(self, source: str, target: str) -> None:
        self._files[target] = self._files.pop(source)

    def link(self, source: str, target: str) -> None:
        if source not in self._files:
            raise FileNotFoundError(source)
        if target in self._files:
            raise FileExistsError(target)
        self._files[target] = self._files[source]

    def unlink(self, path: str) -> None:
        self._files.pop(path, None)

    def make_dir(self, path: str) -> None:
        pass

    def remove_tree(self, path: str) -> None:
        for name in [name for name in self._files if name.startswith(path + "/")]:
            del self._files[name]

    def list_dir(self, path: str) -> list[str]:
        prefix = path + "/" if path else ""
        inside = (name[len(prefix) :] for name in self._files if name.startswith(prefix))
        return sorted({name.split("/", 1)[0] for name in inside})

    def exists(self, path: str) -> bool:
        return path in self._files or bool(self.list_dir(path))

    def links(self, path: str) -> int:
        return sum(content is self._files[path] for content in self._files.values())

    def stamp(self, path: str) -> object:
        found = self._files.get(path)
        return None if found is None else (id(found), len(found))

    def sync_dir(self, path: str) -> None:
        pass

    def identity(self) -> None:
        return None

    def check(self, *folders: str) -> None:
        pass

    def lock(self, path: str, note: str, *, whole: bool = False) -> Lock:
        if path in self._locked:
            raise LogLocked(f"{path} is already locked by this process")
        self._locked.add(path)
        return _MemoryLock(self._locked, path)

    def crash(self) -> None:
        """Simulate the death of the process: release all locks, and keep the bytes."""
        self._locked = set()


class MemoryFile:
    """A file in memory."""

    def __init__(self, content: bytearray) -> None:
        self._content = content

    def append(self, *parts: Bytes) -> int:
        start = len(self._content)
        for part in parts:
            self._content += part
        return start

    def rewrite(self, position: int, data: Bytes) -> None:
        self._content[position : position + len(data)] = data

    def read(self, position: int, size: int) -> Bytes:
        return bytes(self._content[position : position + size])

    def size(self) -> int:
        return len(self._content)

    def truncate(self, size: int) -> None:
        del self._content[size:]

    def sync(self) -> None:
        pass

    def write_back(self, position: int) -> None:
        pass

    def close(self) -> None:
        pass


class _MemoryLock:
    def __init__(self, locked: set[str], path: str) -> None:
        self._locked = locked
        self._path = path

    def release(self) -> None:
        self._locked.discard(self._path)

    def check(self) -> None:
        pass
