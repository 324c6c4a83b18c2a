"""dray without its feed of events and without its statistics: what those cost is the difference to dray.

There is no such setting. The scripts are the same, except that the one command that writes the feed is not
sent: its arguments go to a function that does nothing with them.
"""

from __future__ import annotations

import hashlib

from bench.peers.subjects.dray import app, producer
from dray.broker.redis.scripts import SCRIPTS, Script
from dray.worker.executor import accounting

__all__ = ["app", "producer"]

for _name, _script in list(SCRIPTS.items()):
    _source = _script.source.replace("call('XADD'", "tostring('XADD'")
    assert "call('XADD'" not in _source, _name
    SCRIPTS[_name] = Script(_name, _source, hashlib.sha1(_source.encode(), usedforsecurity=False).hexdigest())
accounting.PER_SECOND = 0  # type: ignore[misc]
