"""What is run inside a pod, as text for its /bin/sh: POSIX, tried with dash, bash and busybox.

A script goes in over standard input, never in the address of the exec, which API servers log and bound. The first lines
of input, up to one that is a random word, are the script; what follows is the command's own input.

A box has no outside that we could act from: a kill or a copy is a program of the image, run in the pod by its first
user. So nothing here protects a box from its own root; what is graded is graded in another pod.

Source: POSIX.1-2017, "Shell Command Language"; kill(2): -1 means every process but the first and the caller's own;
cgroups(7) and Documentation/admin-guide/cgroup-v2.rst for the names of counters.
"""

import re
from collections.abc import Mapping, Sequence

INIT = (
    "/bin/sh",
    "-c",
    'while :; do sleep 2147483647 & wait "$!"; case $? in 126|127) exit 1;; esac; done',
)
"""The first process: a shell that waits and so reaps what loses its parent; a killed ``sleep`` is started again."""
LOADER = 's=;n=\'\n\';while IFS= read -r l&&[ "$l" != "$0" ];do s=$s$l$n;done;eval "$s"'
"""Reads a script up to the line that is ``$0`` and runs it. ``read`` takes no byte beyond its line from a pipe."""
_PLAIN = re.compile(r"[\t\n\x20-\x7e]*\Z")

KILL = r"""
settle() {
  turns=0
  while [ "$turns" -lt 1500 ]; do
    kill -s KILL -- -1 2>/dev/null
    alive=
    for p in /proc/[0-9]*; do
      case ${p#/proc/} in 1|$$) continue;; esac
      state= parent= line=
      while read -r k v _; do
        case $k in State:) state=$v;; PPid:) parent=$v; break;; esac
      done 2>/dev/null <"$p/status"
      case $state in ''|Z|X) continue;; esac
      { read -r line <"$p/cmdline"; } 2>/dev/null
      case $parent$line in 1sleep*2147483647*) continue;; esac
      alive=$alive${p#/proc/}
    done
    [ -z "$alive" ] && return 0
    turns=$((turns + 1))
  done
  return 1
}
"""
"""``settle`` kills every process but the first and this one, and returns when they have ended; 1: they have not."""

COUNT = r"""
count() {
  cpu= peak= oom= g=/sys/fs/cgroup
  if [ -r $g/memory.events ]; then
    while read -r k v; do case $k in oom_kill) oom=$v;; esac; done <$g/memory.events
    while read -r k v; do case $k in usage_usec) cpu=$v;; esac; done <$g/cpu.stat
    [ -r $g/memory.peak ] && read -r peak <$g/memory.peak
  elif [ -r $g/memory/memory.oom_control ]; then
    while read -r k v; do case $k in oom_kill) oom=$v;; esac; done <$g/memory/memory.oom_control
    read -r peak <$g/memory/memory.max_usage_in_bytes
    for f in $g/cpuacct/cpuacct.usage $g/cpu,cpuacct/cpuacct.usage; do
      [ -r "$f" ] && { read -r cpu <"$f"; cpu=$((cpu / 1000)); break; }
    done
  fi
} 2>/dev/null
used() {
  kib=0
  for d in $written; do
    [ -d "$d" ] && set -- "$@" "$d"
  done
  [ $# -gt 0 ] && kib=$(du -skx -- "$@" 2>/dev/null | { t=0; while read -r k _; do t=$((t + k)); done; echo "$t"; })
}
"""
"""``count``: CPU in µs, peak memory in bytes and kills for want of memory; ``used``: KiB below ``$written``."""

BECOME = r"""
find_user() {
  name= uid= gid= home=/
  while IFS=: read -r a _ b c _ d _; do
    if [ "$a" = "$1" ] || [ "$b" = "$1" ]; then name=$a uid=$b gid=$c home=$d; break; fi
  done 2>/dev/null </etc/passwd
  if [ -z "$uid" ]; then
    case $1 in ''|*[!0-9]*) return 1;; esac
    uid=$1 gid=0
  fi
  groups=$gid
  while IFS=: read -r _ _ c d; do
    [ -n "$name" ] && case ,$d, in *,"$name",*) groups=$groups,$c;; esac
  done 2>/dev/null </etc/group
  return 0
}
find_way() {
  way=
  while read -r k v _; do case $k in Uid:) mine=$v;; esac; done </proc/self/status
  [ "$mine" = "$uid" ] && { way=none; return 0; }
  [ "$mine" = 0 ] || return 1
  if setpriv --reuid 0 --regid 0 --clear-groups -- true; then way=setpriv
  elif python3 -c 0; then way=python3
  elif perl -e 0; then way=perl
  elif [ -n "$name" ] && command -v su; then way=su
  else return 1; fi
} >/dev/null 2>&1
become() {
  case $way in
    none) exec "$@";;
    setpriv) exec setpriv --reuid "$uid" --regid "$gid" --groups "$groups" -- /bin/sh -c 'exec "$@"' sh "$@";;
    python3) exec python3 -I -S -c 'import os,sys
u,g,s=sys.argv[1:4]
os.setgroups([int(x) for x in s.split(",")]);os.setgid(int(g));os.setuid(int(u))
os.execv("/bin/sh",["sh","-c","exec \"$@\"","sh"]+sys.argv[4:])' "$uid" "$gid" "$groups" "$@";;
    perl) exec perl -e '$u=shift;$g=shift;$s=shift;$s=~tr/,/ /;$(=$g;$)="$g $s";$<=$u;$>=$u;
exec "/bin/sh","-c","exec \"\$\@\"","sh",@ARGV' "$uid" "$gid" "$groups" "$@";;
    su) exec su -m -s /bin/sh "$name" -c 'exec "$0" "$@"' "$@";;
  esac
}
"""
"""Another user without a program of ours in the image: by the first of four programs that images have."""

SUPERVISE = r"""
broke= before=
count; before=$oom
trap 'broke=processes' USR1
trap 'broke=disk' USR2
exec 3<&0 4>&2
if [ "$size" = 0 ]; then run </dev/null 3<&- 4>&- &
else head -c "$size" <&3 | run 3<&- 4>&- & fi
pid=$!
watch 3<&- 4>&- >/dev/null 2>&1 </dev/null &
exec 3<&- </dev/null >/dev/null 2>&1
wait "$pid"; rc=$?
settle; left=$?
count
if [ -z "$broke" ] && [ -n "$most_kib" ]; then used; [ "$kib" -gt "$most_kib" ] && broke=disk; fi
printf '\n%s rc=%s broke=%s left=%s cpu=%s peak=%s oom=%s\n' "$0" "$rc" "$broke" "$left" "$cpu" "$peak" \
  "$((${oom:-0} - ${before:-0}))" >&4
"""
"""Runs ``run`` and, when it has ended, ends everything else; its last line on standard error is ours."""

WATCH = r"""
watch() {
  trap - USR1 USR2
  turns=0
  while :; do
    sleep 0.2 || sleep 1
    set -- /proc/[0-9]*
    [ -n "$most_processes" ] && [ $# -gt "$most_processes" ] && kill -s USR1 $$
    turns=$((turns + 1))
    if [ -n "$most_kib" ] && [ $((turns % 4)) = 0 ]; then
      used
      [ "$kib" -gt "$most_kib" ] && kill -s USR2 $$
    fi
  done
}
"""
"""Looks at what the kernel does not limit for us: processes five times a second, files every 0.8 s."""


class Words:
    """Values as shell text: printable ASCII is quoted, anything else is written in octal and read back.

    Shells differ in what they make of other bytes in a script; none of them differs about ``printf``.
    """

    def __init__(self) -> None:
        self._made: list[str] = []

    def quoted(self, value: str) -> str:
        """Return a word that stands for ``value``."""
        if _PLAIN.match(value):
            return "'" + value.replace("'", "'\\''") + "'"
        octal = "".join(f"\\0{byte:03o}" for byte in value.encode(errors="surrogateescape"))
        name = f"word{len(self._made)}"
        self._made.append(f"{name}=$(printf '%b.' '{octal}'); {name}=${{{name}%.}}")
        return f'"${name}"'

    def all(self, values: Sequence[str]) -> str:
        """Return words for all of ``values``."""
        return " ".join(self.quoted(value) for value in values)

    @property
    def made(self) -> str:
        """What must stand before the words are used."""
        return "".join(f"{line}\n" for line in self._made)


HIDDEN = " ".join(
    ["KUBERNETES_PORT", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "KUBERNETES_SERVICE_PORT_HTTPS"]
    + [f"KUBERNETES_PORT_443_TCP{part}" for part in ("", "_PROTO", "_PORT", "_ADDR")]
)
"""What every container is told of the API server, whatever ``enableServiceLinks`` says."""


def supervised(
    argv: Sequence[str],
    *,
    cwd: str,
    env: Mapping[str, str],
    user: str | None,
    size: int,
    most_processes: int | None,
    most_kib: int | None,
    largest_kib: int | None,
    written: str,
) -> str:
    """Return the script of one command of a box.

    Args:
        argv: program and arguments.
        cwd: where it starts.
        env: added to the image's own.
        user: name or id; None: the container's.
        size: bytes of input that follow the script.
        most_processes: of the whole pod, ours included; None: unbounded.
        most_kib: below ``written``; None: unbounded.
        largest_kib: of one file; None: unbounded.
        written: directories, separated by blanks.
    """
    words = Words()
    settings = "".join(f"export {name}={words.quoted(value)}\n" for name, value in env.items())
    become = "become" if user is not None else "exec"
    home = "HOME=$home; export HOME\n" if user is not None else ""
    largest = f"ulimit -f {largest_kib * 2} 2>/dev/null\n" if largest_kib is not None else ""
    run = (
        f"run() {{\ntrap - USR1 USR2\n{largest}cd -- {words.quoted(cwd)} || exit 126\nunset {HIDDEN}\n"
        f"{home}{settings}{become} {words.all(argv)}\n}}\n"
    )
    found = ""
    if user is not None:
        found = (
            f"find_user {words.quoted(user)} || {{ printf '\\n%s no-user\\n' \"$0\" >&2; exit 126; }}\n"
            "find_way || { printf '\\n%s no-way\\n' \"$0\" >&2; exit 126; }\n"
        )
    numbers = (
        f"size={size} most_processes={'' if most_processes is None else most_processes} "
        f"most_kib={'' if most_kib is None else most_kib} written='{written}'\n"
    )
    before = KILL + COUNT + WATCH + (BECOME if user is not None else "")
    return before + words.made + numbers + run + found + SUPERVISE
