"""Python runs this module at the start of each process that a test starts (see `tests/conftest.py`).

The Kubernetes client imports kubernetes-validate where it is installed, which takes 1.5 s of processor time. Only tests
have it installed, and no process that they start uses it.
"""

import os
import sys

import starts

sys.addaudithook(starts.record)

if "PYTEST_CURRENT_TEST" in os.environ:  # not for pytest-xdist's workers, which run the tests that use it
    sys.modules["kubernetes_validate"] = None  # type: ignore[assignment]  # an import of it fails, as without it
