#!/bin/bash
# Not git apply: a box without the task's image has a shell, coreutils and python3, no more.
exec python3 -I -S -B /solution/apply_patch.py /solution/fix.patch /app
