"""Verbs: each parses a line, calls a service, and gives an `Answer`. Command line, magic and ask channel share them.

A way in makes a click group of `VERBS` and hands its `Asking` over as the context's object.
"""

from __future__ import annotations

import click

from jupyter_gpu.verbs.answer import PLAIN, Answer, Answers
from jupyter_gpu.verbs.asking import PROGRAM, Asking, common_options, verb
from jupyter_gpu.verbs.cancel import cancel
from jupyter_gpu.verbs.check import check
from jupyter_gpu.verbs.kernels import kernels
from jupyter_gpu.verbs.listing import listing
from jupyter_gpu.verbs.logs import logs
from jupyter_gpu.verbs.priority import priority
from jupyter_gpu.verbs.queues import queues
from jupyter_gpu.verbs.show import show
from jupyter_gpu.verbs.status import status
from jupyter_gpu.verbs.usage import usage
from jupyter_gpu.verbs.why import why

VERBS: tuple[click.Command, ...] = (status, listing, show, why, logs, cancel, priority, queues, usage, check, kernels)

__all__ = ["PLAIN", "PROGRAM", "VERBS", "Answer", "Answers", "Asking", "common_options", "verb"]
