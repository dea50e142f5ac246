#!/bin/bash
cd /app || exit 1
while read -r name; do
  echo "Hello, $name!"
done < names.txt > greetings.txt
