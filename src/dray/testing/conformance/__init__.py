"""The conformance suite: tests that every broker must pass.

Each module is a theme, each test name a sentence about what users can rely on. To run it against a broker,
write a test module of a few lines:

    from dray.testing.conformance import *

    @pytest.fixture(params=["loop", "blocking"])
    def open_broker(request, tmp_path):
        blocking = request.param == "blocking"

        async def open(namespace, retention):
            url = f"sqlite:///{tmp_path}/dray.db"
            return await connect(url, namespace, retention=retention, blocking=blocking)

        return Opener(open, blocking=blocking)

The fixture `open_broker` is all it needs: an async factory `(namespace="dray", retention=None) -> Broker`.
Every test gets a fresh store; all brokers opened within one test are on that same store, each a broker
object of its own where the backend allows it (one stands for the producer, others for workers). With
`blocking=True` the tests run without an event loop. After every test each broker must pass its own `audit`.

The tests pass the time to the verbs (`now=`), so nothing sleeps except in `waking`.

    bench          the clock, workers and shorthands of the tests
    accepting      replies of `put`
    duplicates     ids, keys, once, replace
    taking         order, fairness, filters, runs
    settling       outcomes, and which session may report them
    sessions       leases, crashes, poison
    timing         delays and expiry
    deadlines      jobs that are not finished in time
    limits         rates and slots
    bounds         bounded queues and overflow
    pausing        paused queues and tasks
    dependencies   waiting for jobs, orphans
    edits bulk     changes by hand
    speculation    a second run of a slow job
    reading        get, find, queues, retention
    documents      compare-and-set, put(when=)
    ticks          one job per tick of a schedule, and the clock
    feed           events
    waking         wait and watch
    handing_over   jobs that go straight to a sleeper
    upkeep         sweep
    nonsense       refused values
    namespaces     separate namespaces
    runs           past runs; forced cancels
    memos          the log and the mailbox of durable jobs
    suspension     sleeping, waiting for events and jobs
    undoing        undo before a bad end; cancelled children
    flows          owners, nodes, first successes, revival
"""

try:
    import pytest
except ImportError:
    raise ImportError(
        "dray.testing.conformance is a pytest suite: install pytest to run it (pip install pytest)"
    ) from None

THEMES = (
    "accepting",
    "duplicates",
    "taking",
    "settling",
    "sessions",
    "timing",
    "deadlines",
    "limits",
    "bounds",
    "pausing",
    "dependencies",
    "edits",
    "bulk",
    "speculation",
    "reading",
    "documents",
    "ticks",
    "feed",
    "waking",
    "handing_over",
    "upkeep",
    "nonsense",
    "namespaces",
    "runs",
    "memos",
    "suspension",
    "undoing",
    "flows",
)

# Before the first import of a theme, or its failed assertions would not show their values.
pytest.register_assert_rewrite(*(f"{__name__}.{theme}" for theme in (*THEMES, "bench")))

from dray.testing.conformance.accepting import TestAccepting  # noqa: E402
from dray.testing.conformance.bench import Bench, OpenBroker, Opener  # noqa: E402
from dray.testing.conformance.bounds import TestBounds  # noqa: E402
from dray.testing.conformance.bulk import TestBulkEdits  # noqa: E402
from dray.testing.conformance.deadlines import TestDeadlines, TestRunsPastTheirDeadline  # noqa: E402
from dray.testing.conformance.dependencies import TestOrphans, TestWaitingForJobs  # noqa: E402
from dray.testing.conformance.documents import TestDocuments, TestPuttingWithADocument  # noqa: E402
from dray.testing.conformance.duplicates import TestDuplicates, TestReplacing  # noqa: E402
from dray.testing.conformance.edits import TestEdits  # noqa: E402
from dray.testing.conformance.feed import TestFeed  # noqa: E402
from dray.testing.conformance.flows import (  # noqa: E402
    TestFirstSuccess,
    TestNodes,
    TestOwners,
    TestRevival,
)
from dray.testing.conformance.handing_over import TestConfirming, TestHandingOver  # noqa: E402
from dray.testing.conformance.limits import TestMaxRunning, TestRates  # noqa: E402
from dray.testing.conformance.memos import TestLog, TestMailbox  # noqa: E402
from dray.testing.conformance.namespaces import TestNamespaces  # noqa: E402
from dray.testing.conformance.nonsense import TestNonsense  # noqa: E402
from dray.testing.conformance.pausing import TestPausing  # noqa: E402
from dray.testing.conformance.reading import (  # noqa: E402
    TestNewestFirst,
    TestQueues,
    TestReading,
    TestRetention,
)
from dray.testing.conformance.sessions import TestCrashes, TestSessions  # noqa: E402
from dray.testing.conformance.settling import TestFencing, TestOutcomes  # noqa: E402
from dray.testing.conformance.speculation import TestSpeculation  # noqa: E402
from dray.testing.conformance.suspension import (  # noqa: E402
    TestSleeping,
    TestWaitingForChildren,
    TestWaitingForEvents,
)
from dray.testing.conformance.taking import TestFairness, TestFilters, TestOrder, TestRuns  # noqa: E402
from dray.testing.conformance.ticks import TestClock, TestTicks  # noqa: E402
from dray.testing.conformance.timing import TestDelays, TestExpiry  # noqa: E402
from dray.testing.conformance.undoing import TestChildren, TestUndo  # noqa: E402
from dray.testing.conformance.upkeep import TestUpkeep  # noqa: E402
from dray.testing.conformance.waking import TestWaitingForWork, TestWatching, TestWordForASession  # noqa: E402

__all__ = [
    "Bench",
    "OpenBroker",
    "Opener",
    "TestAccepting",
    "TestBounds",
    "TestBulkEdits",
    "TestChildren",
    "TestClock",
    "TestConfirming",
    "TestCrashes",
    "TestDeadlines",
    "TestDelays",
    "TestDocuments",
    "TestDuplicates",
    "TestEdits",
    "TestExpiry",
    "TestFairness",
    "TestFeed",
    "TestFencing",
    "TestFilters",
    "TestFirstSuccess",
    "TestHandingOver",
    "TestLog",
    "TestMailbox",
    "TestMaxRunning",
    "TestNamespaces",
    "TestNewestFirst",
    "TestNodes",
    "TestNonsense",
    "TestOrder",
    "TestOrphans",
    "TestOutcomes",
    "TestOwners",
    "TestPausing",
    "TestPuttingWithADocument",
    "TestQueues",
    "TestRates",
    "TestReading",
    "TestReplacing",
    "TestRetention",
    "TestRevival",
    "TestRuns",
    "TestRunsPastTheirDeadline",
    "TestSessions",
    "TestSleeping",
    "TestSpeculation",
    "TestTicks",
    "TestUndo",
    "TestUpkeep",
    "TestWaitingForChildren",
    "TestWaitingForEvents",
    "TestWaitingForJobs",
    "TestWaitingForWork",
    "TestWatching",
    "TestWordForASession",
]
