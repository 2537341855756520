"""``%gpu`` in a real kernel, and in plain IPython."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from tests.builders import DEADLINE_S, a_workload, program
from tests.homes import Home


@dataclass
class Cell:
    """What a cell gave."""

    status: str
    shown: list[dict[str, Any]] = field(default_factory=list)
    """Display data and results, by their type, as they are at the end."""
    by_id: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Those of them that can be updated."""
    out: str = ""
    err: str = ""
    error: dict[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """All that is shown as text."""
        return "\n".join(data["text/plain"] for data in self.shown)


class Notebook:
    """A kernel that runs cells."""

    def __init__(self, manager: KernelManager, client: BlockingKernelClient) -> None:
        self.manager, self._client = manager, client

    def start(self, code: str) -> str:
        """Send a cell, and return the id of its message."""
        return self._client.execute(code)

    def follow(self, id: str) -> Iterator[dict[str, Any]]:
        """Iterate over what comes of a cell until it is done."""
        while True:
            message = self._client.get_iopub_msg(timeout=DEADLINE_S)
            if message["parent_header"].get("msg_id") != id:
                continue
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                return
            yield message

    def run(self, code: str) -> Cell:
        """Run a cell to its end."""
        id = self.start(code)
        return self.collect(id, self.follow(id))

    def collect(self, cell_id: str, messages: Iterator[dict[str, Any]]) -> Cell:
        """Return what comes of a cell from now on."""
        cell = Cell("")
        for message in messages:
            kind, content = message["msg_type"], message["content"]
            if kind in ("display_data", "execute_result"):
                cell.shown.append(content["data"])
                if id := content.get("transient", {}).get("display_id"):
                    cell.by_id[id] = content["data"]
            elif kind == "update_display_data":
                cell.by_id[content["transient"]["display_id"]].update(content["data"])
            elif kind == "stream" and content["name"] == "stdout":
                cell.out += content["text"]
            elif kind == "stream":
                cell.err += content["text"]
            elif kind == "error":
                cell.error = content
        while True:
            reply = self._client.get_shell_msg(timeout=DEADLINE_S)
            if reply["parent_header"].get("msg_id") == cell_id:
                cell.status = reply["content"]["status"]
                return cell


@pytest.fixture
def notebook(home: Home) -> Iterator[Notebook]:
    """A kernel of this Python in the home of this test, with the extension loaded."""
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel()
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=DEADLINE_S)
        made = Notebook(manager, client)
        assert made.run("%load_ext jupyter_gpu").status == "ok"
        yield made
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()


def test_an_answer_is_html_and_text_without_colour_codes(home: Home, notebook: Notebook) -> None:
    home.submit(a_workload("w-1", gpus=2, name="first"))
    home.submit(a_workload("w-2", gpus=1, name="second"))
    cell = notebook.run("%gpu status")
    assert cell.status == "ok" and cell.out == cell.err == ""
    (data,) = cell.shown
    assert set(data) == {"text/plain", "text/html"}
    assert data["text/html"].startswith("<pre") and "first" in data["text/html"] and "<script" not in data["text/html"]
    assert re.search(r"1 +second \(w-2\) +queued", data["text/plain"])
    assert "\x1b" not in data["text/plain"] + data["text/html"]


def test_the_verbs_of_the_command_line_are_there(home: Home, notebook: Notebook) -> None:
    home.submit(a_workload("w-1", gpus=1))
    for verb in ("list", "show w-1", "why w-1", "why --gpus 2", "queues show", "usage", "priority w-1 3", "cancel w-1", "check"):
        cell = notebook.run(f"%gpu {verb}")
        assert cell.status == "ok", cell.error
        assert cell.shown and cell.text.strip()


def test_with_json_an_answer_is_a_value(home: Home, notebook: Notebook) -> None:
    home.submit(a_workload("w-1", gpus=1))
    notebook.run("place = %gpu status --json")
    assert notebook.run("place['place']['capacity']").text == "{'nvidia.com/gpu': 2}"


_MISTAKES = (
    ("show nobody", "NotFoundError", "no workload 'nobody'; `%gpu list --all` shows those there are"),
    ("--place moon list", "NotFoundError", "there is no place 'moon'"),
    ("list --kind pizza", "InvalidRequestError", "'pizza' is not one of"),
    ("brew", "InvalidRequestError", "No such command 'brew'"),
    ("show 'w-1", "InvalidRequestError", "No closing quotation"),
    ("why", "InvalidRequestError", "a WORKLOAD, or a size like --gpus 2"),
)


def test_a_mistake_is_one_line_and_ends_the_cell(notebook: Notebook) -> None:
    for line, name, says in _MISTAKES:
        cell = notebook.run(f"%gpu {line}\nprint('after')")
        assert cell.status == "error" and cell.out == "" and cell.shown == []
        assert cell.error["ename"] == name
        (shown,) = cell.error["traceback"]
        assert says in shown and len(shown.splitlines()) == 1
    assert "Traceback" in "\n".join(notebook.run("%gpu --debug show nobody").error["traceback"])


def test_help_is_text(notebook: Notebook) -> None:
    for line, says in (("--help", "why"), ("", "why"), ("why --help", "--max-runtime"), ("queues", "apply")):
        cell = notebook.run(f"%gpu {line}")
        assert cell.status == "ok" and says in cell.out


def test_a_log_is_printed_as_it_comes_and_an_interrupt_ends_it(home: Home, notebook: Notebook) -> None:
    home.submit(a_workload("w-1", command=program(["one"], stderr=["oh"], seconds=60)))
    id = notebook.start("%gpu logs --follow w-1\nprint('after')")
    messages, out, err = notebook.follow(id), "", ""
    while "one" not in out or "oh" not in err:
        message = next(messages)
        if message["msg_type"] == "stream":
            out += message["content"]["text"] if message["content"]["name"] == "stdout" else ""
            err += message["content"]["text"] if message["content"]["name"] == "stderr" else ""
    notebook.manager.interrupt_kernel()
    cell = notebook.collect(id, messages)
    assert cell.status == "error" and "after" not in cell.out
    assert cell.error["traceback"] == ["KeyboardInterrupt: interrupted"]
    assert notebook.run("%gpu list").status == "ok"


_BUSY = """
import threading
from jupyter_gpu.notebook import page
from jupyter_gpu.verbs import lasting
said, say = threading.Event(), page.Page._say
def note(self, words):
    handle = say(self, words)
    said.set()
    return handle
page.Page._say, lasting._AFTER_S = note, 0
with page.Page(is_notebook=True).busy("looking"):
    assert said.wait(30)
"""


def test_what_is_said_of_work_in_progress_is_taken_back(notebook: Notebook) -> None:
    cell = notebook.run(_BUSY)
    assert cell.status == "ok", cell.error
    assert list(cell.by_id.values()) == [{"text/plain": "", "text/html": ""}]


def test_plain_ipython_shows_text(home: Home) -> None:
    home.submit(a_workload("w-1", gpus=1))
    code = "%load_ext jupyter_gpu\n%gpu list\n%gpu show nobody\n"
    command = [sys.executable, "-m", "IPython", "--colors=NoColor", "--no-banner", "--simple-prompt", "-c", code]
    done = subprocess.run(command, env={**os.environ}, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert re.search(r"^w-1 +w-1 +batch", done.stdout, re.MULTILINE)
    assert "NotFoundError: local has no workload 'nobody'" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr and "<pre" not in done.stdout
