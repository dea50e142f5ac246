#!/bin/bash
# The interpreter is named in full and isolated: no variables, no site-packages, no module beside the script.
exec /usr/bin/python3 -I -S -B /tests/judge.py
