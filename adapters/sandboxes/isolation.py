"""How a box is walled in: the bubblewrap command line, and the user namespace that gives a box its own users.

Two ways, tried in this order once per process:

* ``range`` (we are root): the box's processes live in a user namespace of their own whose ids 0..65535 are host ids
  that own nothing. The mount, pid and network namespaces belong to the host's user namespace, so root inside the box
  may change owners and users but neither mounts nor networks. It enters by ``nsenter`` after bubblewrap has mounted.
* ``single`` (we are not root): bubblewrap's own user namespace maps the one id that runs to our own.

Bubblewrap runs the command under a small shell as process 1 (``--as-pid-1``): when it ends, the kernel kills every
process of the box before bubblewrap returns; ``--die-with-parent`` and ``setpriv --pdeathsig`` end the box with us.
"""

import asyncio
import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from adapters.sandboxes.removal import remove_box
from domain.errors import SandboxError
from domain.ports import Toolchain

Way = Literal["range", "single"]

HOST_ID_BASE = 0x4000_0000
"""First host id of a box's ids: far above every id that accounts or container engines use."""
HOST_ID_COUNT = 65536
TOPS = ("tests", "solution", "logs", "tmp", "home", "root", "opt", "var")
"""Directories at the top of every box that it may write; the working directory's comes to them."""
INNER = "/.synth"
"""Where the relay, the model socket and toolchains appear inside."""
TOOLS = f"{INNER}/tools"
PROXY_PORT = 8099
SKELETON_LAYOUT = 3
"""Grows when ``write_skeleton`` writes something else, so that boxes of a newer Synth use no older one."""
_KERNEL_SETTINGS = ("sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi")
_SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
FIXED = frozenset({"usr", "etc", "proc", "dev", INNER.strip("/"), *_SYSTEM})
"""Top-level names that a box may never write."""
_VARIABLE = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LIMITS = 'ulimit -c 0; ulimit -p "$1"; ulimit -f "$2"; '
_RELAY = "{python} -I -S -E {inner}/relay.py {port} {socket} || exit 125; "
_RUN = '. "$3"; shift 3; "$@"; exit "$?"'
"""Process 1 of a command. ``$3`` sets the environment: only here, since what runs before is still the host's root
and must not read a variable such as LD_PRELOAD; and not as arguments, since every user of the host reads those."""


def is_fixed(top: str) -> bool:
    """Say whether a top-level name belongs to the system."""
    return top in FIXED


@dataclass(frozen=True, slots=True, kw_only=True)
class Mounts:
    """Host paths of one box."""

    skeleton: Path
    """What the box sees as ``/``, read-only and shared: the system's names, ``/etc``, and mount points."""
    root: Path
    """What is its own: one directory for each of ``tops``."""
    tops: tuple[str, ...]
    passwd: Path | None = None
    """Own ``passwd`` and ``group`` for a user that the shared ones do not name."""
    group: Path | None = None
    proxy_socket: Path | None = None
    relay: Path | None = None
    toolchains: tuple[Toolchain, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    """What runs inside."""

    argv: tuple[str, ...]
    cwd: str
    env: dict[str, str] = field(default_factory=dict[str, str])
    uid: int = 0
    processes: int | None = None
    file_bytes: int | None = None


def bubblewrap(
    way: Way,
    mounts: Mounts,
    inner: Inner,
    *,
    environment_fd: int,
    status_fd: int | None = None,
    gate_fd: int | None = None,
    userns_fd: int | None = None,
) -> list[str]:
    """Return the command line that runs ``inner`` inside ``mounts``; the descriptors are passed on.

    Args:
        way: how the box gets its users.
        mounts: host paths.
        inner: what runs.
        environment_fd: holds :func:`environment_script`.
        status_fd: bubblewrap says there who process 1 is, and its exit code.
        gate_fd: process 1 waits for a byte there before it runs anything.
        userns_fd: the box's user namespace, ``range`` alone.
    """
    argv = ["bwrap", "--die-with-parent", "--new-session", "--as-pid-1"]
    argv += ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--hostname", "box"]
    if status_fd is not None:
        argv += ["--json-status-fd", str(status_fd)]
    if gate_fd is not None:
        argv += ["--block-fd", str(gate_fd)]
    argv += _mount_arguments(mounts)
    if way == "single":
        argv += ["--unshare-user", "--uid", str(inner.uid), "--gid", str(inner.uid), "--cap-drop", "ALL"]
        for name in _KERNEL_SETTINGS:  # files of the kernel's root, whom our own id may be
            argv += ["--ro-bind-try", f"/proc/{name}", f"/proc/{name}"]
    argv += ["--chdir", inner.cwd, "--"]
    if way == "range":
        argv += ["/usr/bin/nsenter", f"--user=/proc/self/fd/{userns_fd}", "-S", str(inner.uid), "-G", str(inner.uid)]
        argv += ["--", "/usr/bin/setpriv", "--pdeathsig", "KILL", "--no-new-privs"]
    processes = "unlimited" if inner.processes is None else str(inner.processes)
    blocks = "unlimited" if inner.file_bytes is None else str(inner.file_bytes // 512)
    relay = ""
    if mounts.relay is not None and mounts.proxy_socket is not None:
        socket = shlex.quote(inner_socket(mounts.proxy_socket))
        relay = _RELAY.format(python=python_inside(), inner=INNER, port=PROXY_PORT, socket=socket)
    script = _LIMITS + relay + _RUN
    return [*argv, "/bin/sh", "-c", script, "box", processes, blocks, f"/proc/self/fd/{environment_fd}", *inner.argv]


def _mount_arguments(mounts: Mounts) -> list[str]:
    argv = ["--ro-bind", str(mounts.skeleton), "/", "--ro-bind", "/usr", "/usr"]
    for name in _SYSTEM:
        if not Path(f"/{name}").is_symlink() and Path(f"/{name}").is_dir():
            argv += ["--ro-bind", f"/{name}", f"/{name}"]
    for top in mounts.tops:
        argv += ["--bind", str(mounts.root / top), f"/{top}"]
    if mounts.passwd is not None and mounts.group is not None:
        argv += ["--ro-bind", str(mounts.passwd), "/etc/passwd", "--ro-bind", str(mounts.group), "/etc/group"]
    shm = str(mounts.root / "tmp")  # on disk, where it counts; the kernel's own would be memory without a limit
    argv += ["--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev"]
    argv += ["--bind", shm, "/dev/shm"]  # noqa: S108 - inside the box
    if mounts.relay is not None:
        argv += ["--ro-bind", str(mounts.relay), f"{INNER}/relay.py"]
    if mounts.proxy_socket is not None:
        # The directory, not the socket: a model process that starts again makes a new socket under the same name.
        argv += ["--ro-bind", str(mounts.proxy_socket.parent), f"{INNER}/model"]
    return argv + (_toolchain_arguments(mounts.toolchains) if mounts.toolchains else [])


def _toolchain_arguments(toolchains: tuple[Toolchain, ...]) -> list[str]:
    binds = [part for each in toolchains for part in ("--ro-bind", each.source, f"{TOOLS}/{each.name}")]
    return ["--tmpfs", TOOLS, *binds, "--remount-ro", TOOLS]


def inner_socket(proxy_socket: Path) -> str:
    """Return where the proxy's socket lies inside a box."""
    return f"{INNER}/model/{proxy_socket.name}"


def environment_script(inner: Inner) -> bytes:
    """Return shell lines that set the whole environment of ``inner``.

    Raises:
        SandboxError: a name that no shell can set, or a value with a NUL.
    """
    home = "/root" if inner.uid == 0 else "/home/agent"
    lines: list[str] = []
    for name, value in {"PATH": _PATH, "HOME": home, "LANG": "C.UTF-8", **inner.env}.items():
        if _VARIABLE.fullmatch(name) is None or "\0" in value:
            raise SandboxError(f"environment variable {name!r} cannot be set", hint="use letters, digits and _")
        lines.append(f"export {name}={shlex.quote(value)}\n")
    return "".join(lines).encode()


def python_inside() -> str:
    """Return the interpreter that a box sees: one below ``/usr``.

    Raises:
        SandboxError: the machine has none there.
    """
    for candidate in ("/usr/bin/python3", "/usr/local/bin/python3"):
        if Path(candidate).exists():
            return candidate
    raise SandboxError("no python3 below /usr, so boxes have none", hint="install the system package python3")


def make_root(root: Path, tops: tuple[str, ...], way: Way) -> None:
    """Create the directories that one box may write."""
    os.mkdir(root, 0o755)  # noqa: PTH102 - once for each box: pathlib doubles the cost
    for name in tops:
        give(root / name, way, mode=0o777)


def give(path: Path, way: Way, *, uid: int = 0, mode: int = 0o755) -> None:
    """Create a directory that belongs to a user of the box."""
    where = os.fspath(path)
    os.mkdir(where)  # noqa: PTH102
    os.chmod(where, mode)  # noqa: PTH101
    if way == "range":
        os.chown(where, HOST_ID_BASE + uid, HOST_ID_BASE + uid, follow_symlinks=False)


def open_user_namespace() -> int:
    """Return a descriptor of a fresh user namespace whose ids 0..65535 are host ids that own nothing.

    One for each box: the kernel counts processes (RLIMIT_NPROC) by user namespace.

    Raises:
        SandboxError: the kernel refuses.
    """
    ready, inner_end = os.pipe()
    holder = subprocess.Popen(
        ["/usr/bin/unshare", "--user", "/bin/sh", "-c", "echo; read _"],
        stdin=subprocess.PIPE,
        stdout=inner_end,
        stderr=subprocess.DEVNULL,
        env={},
    )
    os.close(inner_end)
    try:
        if not os.read(ready, 1):
            raise SandboxError("the kernel refuses user namespaces", hint="see user.max_user_namespaces")
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{holder.pid}/{name}").write_text(f"0 {HOST_ID_BASE} {HOST_ID_COUNT}\n")
        return os.open(f"/proc/{holder.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise SandboxError(f"a user namespace could not be mapped: {error}") from error
    finally:
        os.close(ready)
        holder.kill()
        holder.communicate()


def memory_file(content: bytes, name: str) -> int:
    """Return a descriptor of an anonymous file that holds ``content``, at its start."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def write_skeleton(skeleton: Path) -> None:
    """Write what all boxes see as ``/``: of the host only the library cache and the alternatives."""
    if skeleton.exists():
        return
    fresh = skeleton.with_name(f"{skeleton.name}.{os.getpid()}")
    for name in ("usr", "etc", "proc", "dev", INNER.strip("/"), *TOPS):
        (fresh / name).mkdir(parents=True)
    _link_system(fresh)
    (fresh / INNER.strip("/") / "relay.py").touch()
    for name in ("model", "tools"):
        (fresh / INNER.strip("/") / name).mkdir()
    _write_etc(fresh / "etc")
    for path in (fresh, *fresh.iterdir()):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)
    try:
        fresh.rename(skeleton)
    except OSError:
        shutil.rmtree(fresh)  # another process was first


def _link_system(root: Path) -> None:
    """Repeat the machine's ``/bin``, ``/lib`` ...: links into ``/usr``, or mount points on older machines."""
    for name in _SYSTEM:
        system = Path(f"/{name}")
        if system.is_symlink():
            (root / name).symlink_to(system.readlink())
        elif system.is_dir():
            (root / name).mkdir()


def _write_etc(etc: Path) -> None:
    files = {
        "passwd": passwd_text(),
        "group": group_text(),
        "hosts": "127.0.0.1 localhost box\n::1 localhost\n",
        "hostname": "box\n",
        "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
        "resolv.conf": "",
    }
    for name, text in files.items():
        (etc / name).write_text(text)
    if Path("/etc/ld.so.cache").exists():
        shutil.copyfile("/etc/ld.so.cache", etc / "ld.so.cache")
    if Path("/etc/alternatives").is_dir():
        shutil.copytree("/etc/alternatives", etc / "alternatives", symlinks=True)


def passwd_text(user: str | None = None, uid: int = 1000) -> str:
    """Return a ``passwd`` with root, nobody and one ordinary user."""
    name = user or "agent"
    return (
        "root:x:0:0:root:/root:/bin/bash\n"
        f"{name}:x:{uid}:{uid}:{name}:/home/agent:/bin/bash\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    )


def group_text(user: str | None = None, uid: int = 1000) -> str:
    """Return the ``group`` that goes with :func:`passwd_text`."""
    return f"root:x:0:\n{user or 'agent'}:x:{uid}:\nnogroup:x:65534:\n"


async def choose_way(scratch: Path, skeleton: Path, wanted: Way | None = None) -> Way:
    """Try to run ``true`` each way and return the first that works.

    Raises:
        SandboxError: neither works; the message holds bubblewrap's own words.
    """
    if shutil.which("bwrap") is None:
        raise SandboxError("bubblewrap is not installed", hint="install the system package bubblewrap")
    complaint = ""
    ways: tuple[Way, ...] = ("range", "single") if os.geteuid() == 0 else ("single",)
    for way in ways if wanted is None else (wanted,):
        complaint = await asyncio.to_thread(_try, way, scratch, skeleton)
        if not complaint:
            return way
    raise SandboxError(f"this machine cannot make boxes: {complaint}", hint="user namespaces must be allowed")


def _try(way: Way, scratch: Path, skeleton: Path) -> str:
    root = scratch / f"probe-{os.getpid()}-{os.urandom(4).hex()}"
    descriptor: int | None = None
    environment = memory_file(b"", "environment")
    try:
        make_root(root, TOPS, way)
        descriptor = open_user_namespace() if way == "range" else None
        argv = bubblewrap(
            way,
            Mounts(skeleton=skeleton, root=root, tops=TOPS),
            Inner(argv=("/bin/true",), cwd="/"),
            environment_fd=environment,
            userns_fd=descriptor,
        )
        passed = (environment,) if descriptor is None else (environment, descriptor)
        done = subprocess.run(  # noqa: S603 - argv is built here, without a shell
            argv, pass_fds=passed, env={}, capture_output=True, check=False, timeout=30
        )
    except (OSError, SandboxError, subprocess.TimeoutExpired) as error:
        return str(error)
    else:
        return "" if done.returncode == 0 else done.stderr.decode(errors="replace").strip() or "no reason given"
    finally:
        os.close(environment)
        if descriptor is not None:
            os.close(descriptor)
        remove_box(root)
