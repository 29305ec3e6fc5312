"""Ends a temporary server when the process that started it dies, even by kill -9.

A shell in a session of its own reads a pipe whose other end only the launching process holds. The
kernel closes that end however the process dies. Then the shell asks the server for a fast
shutdown, insists after some seconds, and removes the temporary directory. It signals only
PostgreSQL processes whose working directory is in there, and removes nothing else.

A process forked without exec (multiprocessing's "fork") holds the pipe as well: then the server
lives as long as the last of them.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

_SCRIPT = r"""
trap '' HUP INT TERM
home=$1 data=$2
case $home in /*/faultline-*) ;; *) exit 2 ;; esac
if read -r word; then exit 0; fi   # a word means that the launcher has cleaned up by itself

is_ours() {
  if [ -d /proc/self ]; then
    # Root in a container may not be allowed to look at cwd, but a postmaster shows its -D.
    case $(readlink "/proc/$1/cwd" || tr '\0' '\n' <"/proc/$1/cmdline" | grep -Fx -e "$data") in
      "$home"|"$home"/*) ;; *) return 1 ;;
    esac
    case $(readlink "/proc/$1/exe" || tr '\0' '\n' <"/proc/$1/cmdline" | head -n 1) in
      */postgres|*/initdb|*/postgres' (deleted)') return 0 ;;
    esac
    return 1
  fi
  case $(ps -o command= -p "$1") in *"$data"*) return 0 ;; esac
  return 1
}
living() {
  if [ -d /proc/self ]; then   # one `ls` for all processes first: a readlink for each is slow
    for pid in $(ls -l /proc/[0-9]*/cwd | grep -F -e "-> $home" |
                 sed 's|.* /proc/\([0-9]*\)/cwd -> .*|\1|'); do
      if is_ours "$pid"; then echo "$pid"; fi
    done
  fi
  if pid=$(head -n 1 "$data/postmaster.pid") && is_ours "$pid"; then echo "$pid"; fi
}
gone_within() {   # tenths of a second
  tenths=$1
  while [ -n "$(living)" ]; do
    tenths=$((tenths - 1))
    if [ "$tenths" -le 0 ]; then return 1; fi
    sleep 0.1
  done
}
if pid=$(head -n 1 "$data/postmaster.pid") && is_ours "$pid"; then
  kill -INT "$pid"
  gone_within 80
fi
for name in QUIT KILL; do
  for pid in $(living); do kill -$name "$pid"; done
  if gone_within 30; then break; fi
done
rm -rf "$home"
"""


class Watchdog:
    """The shell that outlives us; `dismiss` it after cleaning up."""

    def __init__(self, home: Path, data: Path) -> None:
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", _SCRIPT, "faultline-watchdog", str(home), str(data)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )

    @property
    def pid(self) -> int:
        """The shell's process id."""
        return self._shell.pid

    def dismiss(self) -> None:
        """Tell it that nothing is left to do, and wait for it to leave."""
        self._shell.communicate(b"done\n")
