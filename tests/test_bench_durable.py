"""The bench of durable jobs runs, and its tables say what was measured."""

from __future__ import annotations

import redis_server
from bench.durable.__main__ import markdown, run
from bench.durable.cases import TINY


def test_the_costs_of_steps_and_sleepers_are_measured() -> None:
    redis_server.need("valkey")
    costs = run(TINY, "valkey")
    assert len(costs.plain) == len(costs.durable) == TINY.rounds
    assert min(costs.plain + costs.durable) > 0
    assert "goal: at most 3" in markdown(costs)
