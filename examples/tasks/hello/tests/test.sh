#!/bin/bash
# Reward 1 when both files hold exactly what is expected, else 0. Nothing the agent wrote is executed.
same() { [ -f "$1" ] && [ ! -L "$1" ] && cmp -s -- "$1" "/tests/expected/$1"; }

reward=0
if cd /app && same names.txt && same greetings.txt; then
  reward=1
fi
echo "reward $reward"
echo "$reward" > /logs/verifier/reward.txt
