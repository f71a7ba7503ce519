"""The outside suite `jupyter_kernel_test` against our kernelspec.

The same tests are enabled as ipykernel enables for itself: every sample below is one that plain
ipykernel answers, and the very same class runs against plain ipykernel as a control.
"""

from __future__ import annotations

from typing import ClassVar

import jupyter_kernel_test


class SamplesOfIpykernel(jupyter_kernel_test.KernelTests):
    """What ipykernel is able to do, as code samples; no test of the suite is left out."""

    __test__ = False
    language_name = "python"
    file_extension = ".py"
    code_hello_world = "print('hello, world')"
    code_stderr = "import sys; print('to stderr', file=sys.stderr)"
    completion_samples: ClassVar = [
        {"text": "enum", "matches": {"enumerate"}},
        {"text": "zi", "matches": {"zip"}},
    ]
    complete_code_samples: ClassVar = ["1", "print('all of it')", "def f(x):\n  return x * 2\n\n\n"]
    incomplete_code_samples: ClassVar = ["print('''some", "def f(x):\n  x * 2"]
    invalid_code_samples: ClassVar = ["import = 7q"]
    code_page_something = "open?"
    code_generate_error = "raise ValueError('on purpose')"
    code_execute_result: ClassVar = [
        {"code": "1+2+3", "result": "6"},
        {"code": "[n * n for n in range(1, 4)]", "result": "[1, 4, 9]"},
    ]
    code_display_data: ClassVar = [
        {
            "code": "from IPython.display import HTML, display; display(HTML('<b>bold</b>'))",
            "mime": "text/html",
        },
        {
            "code": "from IPython.display import Math, display; display(Math('x^2'))",
            "mime": "text/latex",
        },
    ]
    code_history_pattern = "1?2*"
    supported_history_operations = ("tail", "search")
    code_inspect_sample = "open"
    code_clear_output = "from IPython.display import clear_output; clear_output()"


class TestPlainIpykernel(SamplesOfIpykernel):
    """The control: what the suite says of the kernel that users have today."""

    __test__ = True
    kernel_name = "python3"


class TestNotebookOS(SamplesOfIpykernel):
    """Ours."""

    __test__ = True
    kernel_name = "notebookos"
