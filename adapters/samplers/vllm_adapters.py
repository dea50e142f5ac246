"""Directories of adapters that vLLM servers read: one for each content, written once, never changed, removed last.

A server keys its caches by an adapter's name and directory, and reads the directory again whenever it dropped the
weights; other weights under the same name, or a directory that is gone, give wrong logprobs or a dead server.

The base is an adapter, too, one of zeros: where a batch mixes adapters with calls to the base itself, the CPU build
gives those calls the weights of the last adapter (seen: vLLM 0.32, ``lora/ops/torch_ops``, index -1).

Source: facts/proxy.md section 3.4.
"""

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch

from adapters.lora_format import Adapter, Factors, read_adapter, write_adapter
from adapters.torch_weights import CONFIG_FILE, fetch_files, keep_files
from domain.errors import ConfigurationError, ConflictError, StoreError, boundary
from domain.ports import Store
from domain.records.canonical import digest_bytes, digest_of
from domain.records.model import BasePolicy, FileEntry, PolicyVersion

_LOCK = ".lock"
_INCOMING = ".incoming-"
_LAYER = "model.layers.0.self_attn.k_proj"
_RANK = 8
"""The least that vLLM keeps room for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """How a server knows a policy version."""

    name: str
    """The version's name with a digest of what it is, ``ckpt-<12 hex>@<16 hex>``; a plain base's ``base-<12 hex>``."""
    base: str
    """Name of the base it belongs to."""
    directory: Path | None
    """None for a plain base."""
    version: PolicyVersion


class AdapterDirectories:
    """The directory that servers share with us; only one process may own it."""

    def __init__(self, root: Path, store: Store) -> None:
        """Take the directory.

        Raises:
            ConfigurationError: it cannot be made.
            ConflictError: another process owns it.
        """
        self._root = root.absolute()
        self._store = store
        self._complete: set[str] = set()
        """Names whose directories this process has seen whole."""
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self._root / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConflictError(f"another process owns the adapters in {self._root}") from error
        except OSError as error:
            raise ConfigurationError(f"directory of adapters {self._root}: {error.strerror}") from error
        for torn in self._root.glob(f"{_INCOMING}*"):
            shutil.rmtree(torn, ignore_errors=True)

    def close(self) -> None:
        """Let another process own it."""
        os.close(self._lock)

    def served(self, version: PolicyVersion, base: BasePolicy, *, plain_base: bool) -> Served:
        """Return the names of a version: other content is another name and another directory; blocks.

        Args:
            version: of which.
            base: its base.
            plain_base: whether the base is itself and not an adapter of zeros.
        """
        base_name = f"base-{version.base[:12]}"
        if not version.adapter and plain_base:
            return Served(name=base_name, base=base_name, directory=None, version=version)
        if not version.adapter:
            version = replace(version, adapter=_zeros(base, self._store))
        content = digest_of([version.base, sorted([entry.path, entry.content.digest] for entry in version.adapter)])
        name = f"{version.name}@{content[:16]}"
        return Served(name=name, base=base_name, directory=self._root / name, version=version)

    def is_ours(self, name: str, directory: str) -> bool:
        """Say whether a server has this name from us."""
        return Path(directory) == self._root / name

    def is_complete(self, served: Served) -> bool:
        """Say whether nothing has to be written."""
        return served.directory is None or served.name in self._complete

    def ensure(self, served: Served) -> None:
        """Have the adapter's files in its directory, whole; blocks.

        Raises:
            ConfigurationError: the files are no plain LoRA adapter, or hold values that are no finite numbers.
            NotFoundError: a file is not in the store.
            StoreError: the directory cannot be written, or holds something else.
        """
        if served.directory is None or served.name in self._complete:
            return
        files = fetch_files(self._store, served.version.adapter)
        for name, factors in read_adapter(files).factors.items():
            if not (factors.a.isfinite().all() and factors.b.isfinite().all()):
                # Seen: after one call the server's memory of keys holds NaN, and every later call of anybody fails.
                raise ConfigurationError(f"adapter {served.version.name}: values at {name} are not finite")
        try:
            if not served.directory.exists():
                self._write(served.directory, files)
            self._verify(served)
        except OSError as error:
            raise StoreError(f"write adapter {served.name} to {served.directory}: {error.strerror}") from error
        self._complete.add(served.name)

    def names(self) -> tuple[str, ...]:
        """Return the names of the directories that are there; blocks."""
        return tuple(sorted(path.name for path in self._root.iterdir() if not path.name.startswith(".")))

    def forget(self, names: Collection[str]) -> None:
        """Have them written anew when they are next needed: they are about to be removed."""
        self._complete.difference_update(names)

    def remove(self, names: Collection[str]) -> None:
        """Remove directories that no server has or will read; blocks."""
        for name in names:
            grave = Path(tempfile.mkdtemp(prefix=_INCOMING, dir=self._root))
            (self._root / name).rename(grave / name)
            shutil.rmtree(grave)

    def _write(self, directory: Path, files: dict[str, bytes]) -> None:
        """Write everything elsewhere and rename: nobody ever sees a part of it."""
        staged = Path(tempfile.mkdtemp(prefix=_INCOMING, dir=self._root))
        for path, content in files.items():
            target = staged / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            target.chmod(0o444)
        staged.chmod(0o755)  # servers may be other users
        staged.rename(directory)

    @staticmethod
    def _verify(served: Served) -> None:
        directory = served.directory
        assert directory is not None  # noqa: S101 - a base has none and is never verified
        for entry in served.version.adapter:
            path = directory / entry.path
            if not path.is_file() or digest_bytes(path.read_bytes()) != entry.content.digest:
                raise StoreError(
                    f"{path} is not the adapter's file {entry.content.digest[:12]}",
                    hint="stop the servers, remove the directory and start again",
                )


def _zeros(base: BasePolicy, store: Store) -> tuple[FileEntry, ...]:
    """Keep an adapter that changes nothing, of one projection of the first layer."""
    with boundary(ConfigurationError, f"read the configuration of base {base.name}"):
        (entry,) = (one for one in base.files if one.path == CONFIG_FILE)
        config = cast("dict[str, Any]", json.loads(store.get(entry.content)))
        config = cast("dict[str, Any]", config.get("text_config", config))
        hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
        n_out = int(config.get("num_key_value_heads", heads)) * int(config.get("head_dim") or hidden // heads)
    factors = Factors(a=torch.zeros(_RANK, hidden), b=torch.zeros(n_out, _RANK))
    adapter = Adapter(scale=1.0, factors={_LAYER: factors})
    return keep_files(store, write_adapter(adapter, rank=_RANK, alpha=_RANK, base=base.digest))
