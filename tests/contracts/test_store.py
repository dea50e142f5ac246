"""The store contract, over a directory and memory; what a directory adds."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from adapters.stores.directory import DirectoryStore
from domain.errors import NotFoundError, StoreError, SynthError
from domain.ports import Store
from domain.records.canonical import digest_bytes
from domain.records.task import ObjectRef
from tests.contracts.tiny_disk import tiny_disk
from tests.fakes.store import MemoryStore


@pytest.fixture(params=["directory", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Every store in turn, empty."""
    return DirectoryStore(tmp_path / "store") if request.param == "directory" else MemoryStore()


@pytest.fixture
def directory(tmp_path: Path) -> DirectoryStore:
    """A store in a directory."""
    return DirectoryStore(tmp_path / "store")


def files(root: Path) -> list[Path]:
    """Return every file below a directory."""
    return sorted(path for path in root.rglob("*") if path.is_file())


@pytest.mark.parametrize("data", [b"", b"hello", bytes(range(256)) * 5000])
def test_returns_what_was_put(store: Store, data: bytes) -> None:
    """Bytes come back under the SHA-256 that names them."""
    ref = store.put(data)
    assert ref == ObjectRef(digest=digest_bytes(data), size_bytes=len(data))
    assert store.has(ref.digest)
    assert store.get(ref) == data
    assert store.put(data) == ref
    assert ref.digest in store.location(ref)


def test_unknown_object(store: Store) -> None:
    """What was never put is not here."""
    ref = ObjectRef(digest="0" * 64, size_bytes=1)
    assert not store.has(ref.digest)
    with pytest.raises(NotFoundError):
        store.get(ref)


def test_many_threads_put_the_same(store: Store) -> None:
    """Writers of equal bytes do not disturb each other."""
    refs: list[ObjectRef] = []
    threads = [threading.Thread(target=lambda: refs.append(store.put(b"same" * 1000))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refs) == 8
    assert len(set(refs)) == 1
    assert store.get(refs[0]) == b"same" * 1000


def test_directory_layout(directory: DirectoryStore, tmp_path: Path) -> None:
    """An object lies at aa/bb/<sha256>, read-only, and nothing else is left."""
    ref = directory.put(b"hello")
    path = tmp_path / "store" / ref.digest[:2] / ref.digest
    assert files(tmp_path / "store") == [path]
    assert path.stat().st_mode & 0o777 == 0o444
    assert directory.location(ref) == path.as_uri()


def test_a_present_object_is_not_written_again(directory: DirectoryStore, tmp_path: Path) -> None:
    """The second put leaves the very same file."""
    directory.put(b"hello")
    (path,) = files(tmp_path / "store")
    before = path.stat()
    directory.put(b"hello")
    after = path.stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_a_damaged_object_is_refused_and_can_be_made_again(directory: DirectoryStore, tmp_path: Path) -> None:
    """Changed bytes are never returned; a torn file is replaced by the next put."""
    ref = directory.put(b"hello")
    (path,) = files(tmp_path / "store")
    for damage in (b"jello", b"hell", b""):
        path.chmod(0o644)
        path.write_bytes(damage)
        with pytest.raises(StoreError, match=ref.digest):
            directory.get(ref)
    directory.put(b"hello")
    assert directory.get(ref) == b"hello"


def test_abandoned_staging_is_swept(tmp_path: Path) -> None:
    """What a killed process staged long ago goes; what is being written stays."""
    incoming = tmp_path / "store" / "incoming"
    DirectoryStore(tmp_path / "store")
    old, new = incoming / "old", incoming / "new"
    for staged in (old, new):
        staged.write_bytes(b"half")
    two_days_ago = time.time() - 2 * 24 * 3600
    os.utime(old, (two_days_ago, two_days_ago))
    DirectoryStore(tmp_path / "store")
    assert files(tmp_path / "store") == [new]


def test_a_file_in_the_way(tmp_path: Path) -> None:
    """A root that cannot be a directory is named, with what to do."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match="file") as refused:
        DirectoryStore(tmp_path / "file" / "store")
    assert refused.value.hint


WRITER = """
import os, sys, pathlib
from adapters.stores.directory import DirectoryStore
store = DirectoryStore(pathlib.Path(sys.argv[1]))
while True:
    print(store.put(os.urandom(300_000)).digest, flush=True)
"""


def test_sigkill_leaves_whole_objects(tmp_path: Path) -> None:
    """A writer killed at some moment leaves every announced object, and no part of one under its name."""
    root = tmp_path / "store"
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(root)], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )
    assert writer.stdout is not None
    announced = [writer.stdout.readline().strip() for _ in range(3)]
    writer.kill()
    out, _ = writer.communicate(timeout=30)
    announced += [line.strip() for line in out.splitlines(keepends=True) if line.endswith("\n")]
    objects = [path for path in files(root) if path.parent.name != "incoming"]
    assert set(announced) <= {path.name for path in objects}
    for path in objects:
        assert digest_bytes(path.read_bytes()) == path.name


@pytest.fixture
def small(tmp_path: Path) -> Generator[Path]:
    """A file system of one mebibyte."""
    with tiny_disk(tmp_path / "small", size_kib=1024) as path:
        yield path


def test_a_full_disk_loses_nothing_acknowledged(small: Path) -> None:
    """Puts fail naming the path; objects put before stay whole; no part of one appears; space heals it."""
    store = DirectoryStore(small / "store")
    kept: list[ObjectRef] = []
    with pytest.raises(StoreError, match=str(small)) as refused:
        kept.extend(store.put(bytes([number]) * 100_000) for number in range(20))
    assert "disk is full" in refused.value.hint
    written = files(small / "store")
    assert written
    for path in written:
        assert digest_bytes(path.read_bytes()) == path.name
    first = store.put(bytes([0]) * 100_000)
    assert store.get(first) == bytes([0]) * 100_000
    written[-1].unlink()
    assert store.get(store.put(b"small again")) == b"small again"


def test_a_read_only_disk_says_so(small: Path) -> None:
    """Reading goes on; writing is refused with what to do."""
    store = DirectoryStore(small / "store")
    ref = store.put(b"before")
    subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True)
    assert store.get(ref) == b"before"
    assert store.put(b"before") == ref
    with pytest.raises(SynthError, match=str(small)) as refused:
        store.put(b"after")
    assert "read-only" in refused.value.hint
