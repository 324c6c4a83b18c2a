"""All keys, slots and channels. The heads of the scripts list the names behind the prefix.

    dray:{namespace:queue}:*       all of one queue, in one slot
    dray:{namespace}:*             sessions, documents, watchers, the list of queues, the layout version
    dray:{namespace:/bucket}:id    the directory of ids that clients made up, in `BUCKETS` parts
    dray:namespace:b|s|w:name      channels: wake-ups of a waiter, notifications of a session or a watcher

Names hold neither `:` nor `/` nor braces, so no tag can be taken for another.
"""

from __future__ import annotations

from binascii import crc_hqx
from functools import lru_cache
from typing import Final

BUCKETS: Final = 64
SLOTS: Final = 16384


class KeyNames:
    """The keys of one namespace."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.own = f"dray:{{{namespace}}}:"
        """The prefix of keys of the namespace as a whole."""
        self.prefixes: dict[str, str] = {}
        """What `queue` returned, by name."""

    def queue(self, name: str) -> str:
        """The prefix of a queue's keys; it is the only key that scripts are given."""
        prefix = self.prefixes.get(name)
        if prefix is None:
            if len(self.prefixes) > 10_000:
                self.prefixes.clear()
            prefix = self.prefixes[name] = f"dray:{{{self.namespace}:{name}}}:"
        return prefix

    def directory(self, id: str) -> str:
        return self.bucket(crc_hqx(id.encode(), 0) % BUCKETS)

    def bucket(self, number: int) -> str:
        return f"dray:{{{self.namespace}:/{number}}}:id"

    def waiter_channel(self, waiter: str) -> str:
        return f"dray:{self.namespace}:b:{waiter}"

    def session_channel(self, session: str) -> str:
        return f"dray:{self.namespace}:s:{session}"

    def watcher_channel(self, watcher: str) -> str:
        return f"dray:{self.namespace}:w:{watcher}"


def beside(prefix: str) -> str:
    """A key, below the prefix, that is sure to exist.

    On a cluster scripts are given both. The prefix itself never exists: while a slot moves to another node,
    one of the two is missing on either node, so that a script is refused (`TRYAGAIN`) instead of finding half
    of its keys.
    """
    return prefix + ("n" if prefix.count(":") > 2 else "layout")


@lru_cache(maxsize=20_000)
def slot(key: str) -> int:
    """The slot of a key, by its hash tag."""
    start = key.find("{")
    end = key.find("}", start + 1)
    tag = key[start + 1 : end] if 0 <= start < end - 1 else key
    return crc_hqx(tag.encode(), 0) % SLOTS
