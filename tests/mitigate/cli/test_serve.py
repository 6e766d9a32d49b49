"""`mitigate serve`: the base URL, a port in use."""

import re
import signal
import socket
import subprocess
import sys

import httpx2
import pytest

from mitigate.cli.main import main

SERVE = """
import sys
import mitigate.cli.serve as serve
from mitigate.cli.main import main
from tests.helpers.rule_annotator import RuleAnnotator
serve.open_annotator = lambda name, options: RuleAnnotator()
sys.exit(main(["serve", "--upstream", "http://h/v1", "--port", *sys.argv[1:]]))
"""


def test_base_url_is_printed_once_it_answers():
    """Port 0 takes a free one; the moment the line is out a client can connect, and Ctrl-C ends it well.

    Of --annotator embedded, which writes no corrections, "correct" alone is refused.
    """
    with subprocess.Popen([sys.executable, "-c", SERVE, "0"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline() + process.stdout.readline()
            url = said.partition("base URL: ")[2].strip()
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+/v1", url), said
            asked = {"messages": [], "hallucination": {"reference": "x", "action": "correct"}}
            reply = httpx2.post(f"{url}/chat/completions", json=asked, timeout=60)
            assert (reply.status_code, "--engine" in reply.text) == (400, True)
            process.send_signal(signal.SIGINT)
            assert process.wait(120) == 0
        finally:
            process.kill()


def test_replies_of_the_annotator_are_cached_too(monkeypatch, tmp_path):
    class Opened(Exception):
        pass

    def opened(name, options):
        raise Opened(name, options)

    monkeypatch.setattr("mitigate.cli.serve.open_annotator", opened)
    name, cache = "generative:openai:m@http://127.0.0.1:9/v1", tmp_path / "r.sqlite"
    for more, options in (([], {}), (["--cache", str(cache)], {"cache": cache})):
        with pytest.raises(Opened) as found:
            main(["serve", "--upstream", "http://h/v1", "--annotator", name, *more])
        assert found.value.args == (name, options)


def test_port_in_use_is_reported():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        command = [sys.executable, "-c", SERVE, str(taken.getsockname()[1])]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 1
    assert "address already in use" in done.stderr
    assert "base URL" not in done.stdout
