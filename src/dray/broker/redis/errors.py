"""Turns errors of servers and sockets into dray's errors."""

from __future__ import annotations

import ssl

from dray.broker.redis.options import Address
from dray.errors import BrokerAway, BrokerBusy, BrokerError, BrokerFull, BrokerReadOnly, ForeignStore


def unreachable(address: Address, error: BaseException, tls: bool = False) -> BrokerError:
    """A connection could not be opened, or broke."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return BrokerError(
            f"{address} has a certificate that is not trusted ({error.verify_message}): name its authority "
            "with ?ca=file, or check the host name"
        )
    if isinstance(error, ssl.SSLError):
        return BrokerError(
            f"{address} does not speak TLS as asked ({error.reason or error}): redis or rediss?"
        )
    if isinstance(error, TimeoutError):
        hint = ", and whether it speaks TLS on this port" if tls else ""
        return BrokerAway(
            f"{address} does not answer: check the address, the network, the server's load{hint}"
        )
    detail = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return BrokerAway(f"{address} cannot be reached ({detail}): is the server running there?")


def cut(address: Address) -> BrokerAway:
    return BrokerAway(
        f"{address} closed the connection before it answered: whether the call took effect is not known; "
        "repeat it"
    )


def replaced(address: Address) -> BrokerAway:
    return BrokerAway(
        f"{address} does not answer, and another server has taken its place: whether the call "
        "took effect is not known; repeat it"
    )


def being_replaced(address: Address, text: str) -> BrokerAway:
    return BrokerAway(f"{address} is not the primary now, and no other is known yet: try again ({text})")


def all_lent(address: Address, count: int, seconds: float) -> BrokerBusy:
    return BrokerBusy(
        f"{address}: all {count} connections of this process have been in use for {seconds:g} s: nothing was "
        "sent; raise pool_size, or use fewer threads"
    )


def silent(address: Address, seconds: float) -> BrokerAway:
    return BrokerAway(
        f"{address} has not answered within {seconds:g} s (timeout): whether the call took effect is not "
        "known; repeat it"
    )


def refused(address: Address, text: str) -> BrokerError:
    """An error reply."""
    code = text.partition(" ")[0]
    match code:
        case "OOM":
            return BrokerFull(
                f"{address} has no memory left: nothing was accepted; raise maxmemory, or let jobs finish "
                f"({text})"
            )
        case "MISCONF":
            return BrokerFull(
                f"{address} cannot save to its disk and accepts nothing: free some space ({text})"
            )
        case "WRONGPASS" | "NOAUTH" | "ERR" if "AUTH" in text or "password" in text:
            return BrokerError(f"{address} refuses this user or password: check the URL ({text})")
        case "NOPERM":
            return BrokerReadOnly(
                f"{address}: this user lacks a permission; docs/brokers.md lists what dray needs ({text})"
            )
        case "READONLY":
            return BrokerReadOnly(f"{address} is a replica and cannot be written: name the primary ({text})")
        case "LOADING" | "BUSY" | "TRYAGAIN":
            return BrokerBusy(f"{address} is busy; try again in a moment ({text})")
        case "CLUSTERDOWN" | "MASTERDOWN" | "NOREPLICAS":
            return BrokerAway(f"{address} is up but its cluster is not: look at its state ({text})")
        case "WRONGTYPE":
            return ForeignStore(f"{address} holds keys under dray's names that are not dray's ({text})")
        case _:
            return BrokerError(f"{address} answered with an error: {text}")


def too_old(address: Address, server: str, version: str) -> BrokerError:
    return BrokerError(
        f"{address} runs {server} {version}, which is too old: dray needs Redis 6.2 or Valkey 7.2 at least"
    )
