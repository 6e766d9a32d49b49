"""`mitigate serve`: options, the base URL, a port in use."""

import re
import signal
import socket
import subprocess
import sys
from urllib.parse import urlsplit

import pytest

from mitigate.cli.main import main


@pytest.mark.parametrize(("extra", "message"), [
    (["--upstream", "nonsense"], "--upstream: expected a base URL"),
    (["--upstream", "http://[h/v1"], "--upstream: expected a base URL"),
    (["--upstream", "http://h:99999/v1"], "--upstream: expected a base URL"),
    (["--upstream", "http://h/v1", "--cache", "c"], "--cache: the response cache of an engine"),
    (["--upstream", "http://h/v1", "--host", "0.0.0.0"], "set MITIGATE_SERVE_TOKEN"),
    (["--upstream", "http://h/v1", "--port", "99999"], "--port: expected 0 to 65535"),
    (["--upstream", "http://h/v1", "--timeout", "0"], "expected more than 0"),
    (["--upstream", "http://h/v1", "--engine", "gpt"], "--engine: engine 'gpt'"),
])  # fmt: skip
def test_wrong_options_are_explained(extra, message, capsys, monkeypatch):
    monkeypatch.delenv("MITIGATE_SERVE_TOKEN", raising=False)
    assert main(["serve", *extra]) == 2
    assert message in capsys.readouterr().err


SERVE = """
import sys
import mitigate.cli.serve as serve
from mitigate.cli.main import main
from tests.helpers.rule_annotator import RuleAnnotator
serve.open_annotator = lambda name, options: RuleAnnotator()
sys.exit(main(["serve", "--upstream", "http://h/v1", "--port", *sys.argv[1:]]))
"""


def test_base_url_is_printed_once_it_answers():
    """Port 0 takes a free one; the moment the line is out a client can connect, and Ctrl-C ends it well."""
    with subprocess.Popen([sys.executable, "-c", SERVE, "0"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline() + process.stdout.readline()
            url = said.partition("base URL: ")[2].strip()
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+/v1", url), said
            socket.create_connection(("127.0.0.1", urlsplit(url).port or 0), timeout=60).close()
            process.send_signal(signal.SIGINT)
            assert process.wait(120) == 0
        finally:
            process.kill()


def test_port_in_use_is_reported():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        command = [sys.executable, "-c", SERVE, str(taken.getsockname()[1])]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 1
    assert "address already in use" in done.stderr
    assert "base URL" not in done.stdout
