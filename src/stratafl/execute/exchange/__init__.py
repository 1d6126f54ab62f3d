"""The exchange between a server and its sites: every upload is absorbed exactly once, whoever is killed when.

`protocol.py` has the messages, `site.py` and `server.py` what each side does with them, `site_store.py` and
`server_store.py` what is on their disks, `audit.py` the server's log. Bytes go in and come out: how they travel is
another module's business, and so is what is computed (`SiteComputation`, `ServerComputation`).
docs/decisions/058-exactly-once.md draws the protocol and says what a kill at each place leads to.
"""

from stratafl.execute.exchange.audit import Mark, verify
from stratafl.execute.exchange.server_exchange import Answer, ServerComputation, ServerExchange, open_server
from stratafl.execute.exchange.site_exchange import SiteComputation, SiteExchange
from stratafl.execute.exchange.site_store import SiteStore, open_site, read_site, site_folder, state_form

__all__ = ["Answer", "Mark", "ServerComputation", "ServerExchange", "SiteComputation", "SiteExchange", "SiteStore"]
__all__ += ["open_server", "open_site", "read_site", "site_folder", "state_form", "verify"]
