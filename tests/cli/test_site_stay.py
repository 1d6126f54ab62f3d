"""What `strata join` shows of a site while it takes part, and when its host ends."""

import json
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="needs pip install 'stratafl[flower]'")

import stratafl.cli.host_command as command
from hosted import with_tables
from stratafl.cli.console import note_console
from stratafl.deploy.federation_report import FederationReport
from stratafl.deploy.site_processes import SiteStatus

OUTAGE = "north has no host any more"  # as the processes of a site would say


class FakeSite:
    """A site that is connected, and gets a report; then its host ends, and Ctrl-C is pressed."""

    reason = refusal = ""

    def __init__(self, folder, heard):
        self.folder, self.heard, self.looks, self.status = folder, heard, 0, SiteStatus.STARTING
        self.interrupt = SimpleNamespace(asked=False)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.status = SiteStatus.ENDED

    def tend(self):
        self.looks += 1
        self.status = SiteStatus.CONNECTED if self.looks < 4 else SiteStatus.UNREACHABLE
        if self.looks == 2 and self.heard:
            FederationReport(7, private=self.heard).save(self.folder)
        self.interrupt.asked = self.looks == 5
        return [OUTAGE] if self.looks == 4 else []


@pytest.mark.parametrize("heard", [(), ("a",), ("a", "b")])
def test_the_end_of_its_host_is_no_outage_for_a_site_that_has_the_report_of_others(
    tmp_path, monkeypatch, capsys, heard
):
    """Its own scores alone come earlier, while the host still works."""
    site = FakeSite(tmp_path, heard)
    monkeypatch.setattr(command, "LOOK", 0.0)
    monkeypatch.setattr(command, "SiteProcesses", lambda prepared, settings: site)
    monkeypatch.setattr(command, "interruptible", lambda console, quiet: nullcontext(site.interrupt))
    prepared = SimpleNamespace(path=tmp_path, file=with_tables(deploy={"sites": ["a", "b"]}), name="a")
    assert command._stay(prepared, "a.csv", False, note_console()) == command.INTERRUPTED
    is_finished = "b" in heard
    assert (OUTAGE in capsys.readouterr().err) is not is_finished
    state = json.loads((tmp_path / command.STATUS).read_text())["state"]
    assert state == ("finished" if is_finished else SiteStatus.UNREACHABLE.value)
    assert site.status is SiteStatus.ENDED
