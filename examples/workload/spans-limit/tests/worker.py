"""Runs in the candidate's process: the library from memory, one question a line, one answer a line.

Nothing here is secret, and nothing that it says is believed but as an answer.
"""

import importlib.abc
import importlib.util
import json
import os
import sys


class Memory(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    def __init__(self, sources):
        self.sources = sources

    def find_spec(self, name, path, target=None):
        if name not in self.sources:
            return None
        return importlib.util.spec_from_loader(name, self, is_package=self.sources[name][1])

    def get_source(self, name):
        return self.sources[name][0]

    def is_package(self, name):
        return self.sources[name][1]


def main():
    channel = os.fdopen(int(sys.argv[1]), "w", encoding="utf-8")
    given, *questions = [json.loads(line) for line in sys.stdin]
    sys.meta_path.append(Memory(given["sources"]))
    operations = {}
    exec(compile(given["operations"], "operations", "exec"), operations)
    for question in questions:
        try:
            answer = {"is": operations[question["do"]](*question["give"])}
        except Exception as error:
            answer = {"raises": type(error).__name__}
        channel.write(json.dumps(answer) + "\n")
        channel.flush()


main()
