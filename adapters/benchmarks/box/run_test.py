"""Run one test in this process and say on a descriptor whether it passed: ``run_test.py DIRECTORY TEST DESCRIPTOR``.

A test is ``path.py::Class::method`` of a unittest class, or ``path.py::function`` without parameters. What the tested
code does to this process can change what is said here: tests in this form are no wall, see ``judge_rows.py``.
"""

import importlib.util
import json
import os
import sys
import unittest
from pathlib import Path


def passes(directory: Path, test: str) -> bool:
    """Run a test and return whether it ran and passed."""
    path, *names = test.split("::")
    sys.path += [str(directory), str((directory / path).parent)]
    spec = importlib.util.spec_from_file_location(path[:-3].replace("/", "."), directory / path)
    if spec is None or spec.loader is None:
        return False
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    if len(names) == 1:
        getattr(module, names[0])()
        return True
    result = unittest.TestResult()
    unittest.TestSuite([getattr(module, names[0])(names[1])]).run(result)
    return result.testsRun == 1 and result.wasSuccessful() and not result.skipped and not result.expectedFailures


def main(arguments: "list[str]") -> None:
    """Run, and answer with one line of JSON."""
    passed = passes(Path(arguments[0]), arguments[1])
    os.write(int(arguments[2]), json.dumps({"passed": passed}).encode() + b"\n")


if __name__ == "__main__":
    main(sys.argv[1:])
