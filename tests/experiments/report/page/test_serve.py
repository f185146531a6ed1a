"""`python -m experiments.watch DIR`: the live page, for this machine alone."""

import http.client
import os
import signal
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments.report.data import ReportData
from experiments.report.page import build, serve
from experiments.report.page.serve import Published, fingerprint
from host.errors import UserError
from tests import app
from tests.experiments.browser import browser
from tests.experiments.recorded import write_run


def ask(port: int, path: str = "/", method: str = "GET", **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@pytest.fixture
def server() -> Iterator[serve.Server]:
    with serve._serving(0, Published("1", "<p>a page</p>")) as server:
        yield server


def test_it_answers_this_machine_by_its_own_names_alone(server):
    port = server.server_port
    assert server.server_address[0] == "127.0.0.1"
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", "localhost"):
        assert ask(port, Host=host) == (200, "<p>a page</p>")
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1:1", "127.0.0.1.evil", ""):
        status, body = ask(port, Host=host)
        assert status == 403 and "a page" not in body
        assert ask(port, "/version", Host=host)[0] == 403


def test_it_reads_and_no_more(server):
    port = server.server_port
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert ask(port, method=method)[0] == 501
    for path in ("/../pyproject.toml", "/summary.json", "/version/"):
        assert ask(port, path)[0] == 404
    assert ask(port, "/version") == (200, "1")


def test_a_browser_that_goes_while_it_is_answered_is_no_fault(server, capsys):
    server.published = Published("1", 50_000_000 * "x")
    server.block_on_close, server.daemon_threads = True, False  # closing it waits for answers
    address = server.server_address
    with socket.create_connection(address) as browser:
        browser.sendall(f"GET / HTTP/1.0\r\nHost: 127.0.0.1:{address[1]}\r\n\r\n".encode())
        assert browser.recv(1)
        browser.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    server.shutdown()
    server.server_close()
    assert capsys.readouterr().err == ""


def test_a_port_in_use_and_no_folder_are_one_sentence(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        words = (tmp_path, "--port", port)
        done = app.run(*words, module="experiments.commands.watch")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"error: Port {port} of 127.0.0.1 is in use: choose another one")
    with pytest.raises(UserError, match="There is no folder"):
        serve.watch(tmp_path / "misspelt", 0, print)


def test_a_browser_that_waits_for_the_page_asks_for_nothing_that_is_not_there(tmp_path, server):
    server.published = serve._waiting(tmp_path, "The runs are being read.")
    with browser(tmp_path) as page:
        page.open(server.url)
        page.wait("performance.now() > 1000")
        said = "document.querySelector('p')?.textContent"
        again = page.wait(f"performance.now() < 1000 && {said}")  # it has loaded itself again
        assert again == "The runs are being read."
        assert page.console == []


def test_every_change_of_a_record_is_seen(tmp_path):
    write_run(tmp_path / "runs" / "a")
    seen = {fingerprint(tmp_path)}
    (tmp_path / "runs" / "a" / "metrics.jsonl").write_text("{}\n")
    seen.add(fingerprint(tmp_path))
    write_run(tmp_path / "runs" / "b", seed=1)
    seen.add(fingerprint(tmp_path))
    for name in ("tuning.json", "targets.yaml", "trace.json"):
        (tmp_path / "runs" / name).write_text("{}")
        seen.add(fingerprint(tmp_path))
    assert len(seen) == 6 and fingerprint(tmp_path) in seen


def test_a_page_that_cannot_be_made_stays_as_it_was(tmp_path, monkeypatch, capsys):
    write_run(tmp_path / "run")
    earlier = Published("1", "a page")

    def fail(*arguments: object) -> str:
        raise ValueError("a fault")

    monkeypatch.setattr(serve, "make_page", fail)
    assert serve._made(tmp_path, "2", earlier) is earlier
    assert "The page stays as it was: ValueError: a fault" in capsys.readouterr().err


def test_it_is_live_survives_half_a_record_and_ends_by_ctrl_c(tmp_path):
    root = tmp_path / "runs"
    root.mkdir()
    watch = app.Command(root, "--port", 0, module="experiments.commands.watch")
    output = Path(watch._files[0])
    app.wait_for(lambda: output.exists() and "\n" in output.read_text(), 90, "address")
    port = int(output.read_text().rstrip("/\n").rpartition(":")[2])

    def page_has(word: str) -> bool:
        assert app.is_running(watch.pid), watch.end(0)
        return word in ask(port)[1]

    app.wait_for(lambda: page_has("There is no run"), 60, "word on the empty folder")
    write_run(root / "half")
    (root / "half" / "summary.json").write_text('{"algo": "allred')
    (root / "half" / "metrics.parquet").write_bytes(b"PAR1")
    write_run(root / "whole")
    app.wait_for(lambda: page_has("half is left out, its summary.json cannot be read"), 120, "page")
    version = ask(port, "/version")[1]
    assert f'data-version="{version}"' in ask(port)[1]
    os.kill(watch.pid, signal.SIGINT)
    done = watch.end(120)
    assert (done.returncode, done.stderr) == (130, "stopped by Ctrl-C\n")
    with pytest.raises(OSError):
        ask(port)


def test_a_page_that_loads_itself_again_goes_on_where_its_reader_was(tmp_path, server):
    """The runs that come make another situation the first one, give names, labels and situations
    further parts, and the slider other targets.
    """
    runs = tmp_path / "runs"

    def publish(version: str) -> None:
        data = ReportData.load(runs)
        text = build._page(data, {}, runs, tmp_path, "runs", version)
        server.published = Published(version, text)

    chosen = "node => node.selectedOptions[0].text"
    ids = "['situation', 'pair-first', 'pair-second']"
    words = f"{ids}.map(id => ({chosen})(document.getElementById(id)))"
    target = "Number(document.getElementById('target-value').textContent)"
    shown = "[...document.querySelectorAll('#algorithms input')].map(n => [n.value, n.checked])"
    ready = "document.documentElement?.classList.contains('complete') && document.body.dataset"
    for algo in ("allreduce", "bytegrad", "local_sgd"):
        write_run(runs / algo, algo)
    publish("1")
    with browser(tmp_path) as page:
        page.open(server.url)
        page.wait(f"{ready}.version === '1'")
        assert page.ask(words) == ["all runs", "local_sgd", "allreduce"]
        page.ask("document.querySelector('#algorithms input[value=local_sgd]').click()")
        names = ("local_sgd bits", "allreduce interval")
        for algo, own in (("local_sgd", {"bits": 4}), ("allreduce", {"interval": 8})):
            for net in ("wan", "lan_1g"):
                write_run(runs / f"{algo}_{net}_new", algo, net, limit=0.993, options=own)
        publish("2")
        page.wait(f"{ready}.version === '2'")
        labels = ["network wan, 50 Mbit/s asked", *(f"{name}=null" for name in names)]
        assert page.ask(words) == labels and page.ask(target) == 0.9
        assert page.ask("document.getElementById('situation').selectedIndex") > 0
        hidden = [name for name, checked in page.ask(shown) if not checked]
        assert hidden == ["local_sgd bits=null"]
        slider = "const s = document.getElementById('target')"
        page.ask(f"(() => {{{slider}; s.value = 3; s.dispatchEvent(new Event('input'))}})()")
        wanted = page.ask(target)
        for seed in range(4):
            write_run(runs / f"poor{seed}", "bytegrad", "dc_10g", seed, limit=0.3)
        publish("3")
        page.wait(f"{ready}.version === '3'")
        assert page.ask(words) == labels
        assert 0 < abs(page.ask(target) - wanted) < 0.03
        assert page.console == []
