"""The exchange between a server and its sites: every upload is absorbed exactly once, even if processes are killed.

`protocol.py` has the messages, `site_exchange.py` and `server_exchange.py` the two sides, `site_store.py` and
`server_store.py` their files, `audit.py` the server's log. Bytes go in and come out. Transport and computation
(`SiteComputation`, `ServerComputation`) are left to the caller.
docs/design/deployment.md#exactly-once draws the protocol and says what a kill at each place leads to.
"""

from stratafl.execute.exchange.audit import LogMark, verify
from stratafl.execute.exchange.server_exchange import Answer, ServerComputation, ServerExchange, open_server
from stratafl.execute.exchange.site_exchange import SiteComputation, SiteExchange
from stratafl.execute.exchange.site_store import SiteStore, open_site, read_site, site_folder, state_form

__all__ = ["Answer", "LogMark", "ServerComputation", "ServerExchange", "SiteComputation", "SiteExchange", "SiteStore"]
__all__ += ["open_server", "open_site", "read_site", "site_folder", "state_form", "verify"]
