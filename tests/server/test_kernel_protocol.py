"""Jupyter's own test of a kernel's protocol (jupyter_kernel_test), for our kernelspec on each place."""

from __future__ import annotations

import io
import unittest

import jupyter_kernel_test

from tests.server.conftest import ASite


class GpuKernelTests(jupyter_kernel_test.KernelTests):
    """What it is told about a Python kernel, all of it."""

    __test__ = False  # run by the test below, on each place
    kernel_name = "gpu"
    language_name = "python"
    file_extension = ".py"
    code_hello_world = "print('hello, world')"
    code_stderr = "import sys; print('test', file=sys.stderr)"
    completion_samples = [{"text": "impor", "matches": {"import"}}]  # noqa: RUF012 - as upstream declares it
    complete_code_samples = ["print('hello')", "x = 1"]  # noqa: RUF012
    incomplete_code_samples = ["for i in range(3):", "x = '''"]  # noqa: RUF012
    invalid_code_samples = ["import = 7q"]  # noqa: RUF012
    code_page_something = "print?"
    code_generate_error = "raise ValueError('x')"
    code_execute_result = [{"code": "6 * 7", "result": "42"}]  # noqa: RUF012
    code_display_data = [  # noqa: RUF012
        {"code": "from IPython.display import HTML, display; display(HTML('<b>x</b>'))", "mime": "text/html"}
    ]
    code_history_pattern = "1?2*"
    supported_history_operations = ("tail", "range", "search")
    code_inspect_sample = "open"
    code_clear_output = "from IPython.display import clear_output; clear_output()"
    support_iopub_welcome = True


class PlainKernelTests(GpuKernelTests):
    """The same of ipykernel's own kernelspec."""

    __test__ = False
    kernel_name = "python3"


# ipykernel 7.4 itself does not answer as jupyter_kernel_test 0.7 wants: the history is not written yet when it asks
NOT_EVEN_PLAIN = {"test_history"}


def test_our_kernel_speaks_jupyters_protocol_as_a_plain_one_does(site: ASite) -> None:
    wrong, said = _run(GpuKernelTests)
    assert wrong <= NOT_EVEN_PLAIN, said
    if wrong:
        plain, said = _run(PlainKernelTests)
        assert wrong <= plain, said


def _run(case: type[unittest.TestCase]) -> tuple[set[str], str]:
    said = io.StringIO()
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(case)
    result = unittest.TextTestRunner(said, verbosity=2).run(suite)
    assert result.testsRun >= 12 and not result.skipped, said.getvalue()
    wrong = (test for test, _ in [*result.failures, *result.errors])
    return {getattr(test, "test_case", test).id().rpartition(".")[2] for test in wrong}, said.getvalue()
