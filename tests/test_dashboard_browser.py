"""The dashboard in a real browser, on a real worker: pages, actions, hostile texts, accessibility."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from browser import Tab, browsing
from dashboard_site import Site, running_site, until

from dray.task import Call

PAGES = {
    "/": "Now",
    "/jobs": "Jobs",
    "/errors": "Errors",
    "/flows": "Flows",
    "/queues": "Queues",
    "/workers": "Workers",
    "/schedules": "Schedules",
    "/guarantees": "Guarantees",
    "/keys": "Keys",
}
HOSTILE = (
    "<script>window.harmed=1;alert(1)</script>",
    "\"'><img src=x onerror=window.harmed=1>",
    "</textarea></pre></code></title><svg/onload=window.harmed=1>",
    "javascript:window.harmed=1//",
    "<a href='javascript:window.harmed=1' autofocus onfocus=window.harmed=1>click</a>",
    "${window.harmed=1}{{constructor.constructor('window.harmed=1')()}}",
    "<iframe srcdoc='<script>parent.harmed=1</script>'></iframe><base href=//evil.example>",
    "&lt;b&gt; &#60;script&#62; %3Cscript%3E \u202e reversed",
    "<style>*{display:none}</style><meta http-equiv=refresh content=0;url=//evil.example>",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with browsing() as browser:
        yield browser


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running_site(tmp_path_factory.mktemp("dashboard")) as site:
        yield site


@pytest.fixture
def tab(browser: Any, site: Site) -> Iterator[Tab]:
    tab = Tab(browser, site.url)
    try:
        yield tab
        assert tab.problems == []
    finally:
        tab.close()


def enqueue(site: Site, task: str, *args: object, **options: Any) -> str:
    kwargs = options.pop("kwargs", {})
    id: str = site.app.submit(Call(task, args, kwargs, options)).id
    return id


def ended(site: Site, id: str, state: str = "succeeded") -> None:
    until(lambda: site.app.job(id).status() == state, say=lambda: site.app.job(id).info())


def fill(site: Site) -> dict[str, str]:
    """A job of each kind that pages show."""
    ids = {
        "done": site.app.using(tags=["blue"], description="a sum").enqueue("add", 1, b=2).id,
        "dead": site.app.using(queue="email", retries=0).enqueue("send", "a@x.org").id,
        "held": site.app.using(queue="slow").enqueue("wait_for", "never").id,
        "late": site.app.using(delay=3600).enqueue("add", 5).id,
        "lost": site.app.using(queue="nowhere").enqueue("add", 6).id,
    }
    ended(site, ids["done"])
    until(lambda: site.app.job(ids["held"]).info().progress)
    return ids


@pytest.fixture(scope="module")
def filled(site: Site) -> dict[str, str]:
    return fill(site)


@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_loads_and_axe_finds_nothing_wrong(
    browser: Any, site: Site, filled: dict[str, str], path: str, scheme: str
) -> None:
    tab = Tab(browser, site.url, color_scheme=scheme, reduced_motion="reduce")
    try:
        tab.open(path, PAGES[path])
        assert tab.axe() == []
        assert tab.problems == []
    finally:
        tab.close()


@pytest.mark.parametrize("kind", ["done", "dead", "held", "late"])
def test_the_page_of_a_job_says_all_and_axe_finds_nothing_wrong(
    tab: Tab, site: Site, filled: dict[str, str], kind: str
) -> None:
    info = site.get(f"/api/jobs/{filled[kind]}")
    page = tab.open(f"/jobs/{filled[kind]}", info["task"])
    page.get_by_text(filled[kind], exact=True).first.wait_for()
    shown = {"done": "3", "dead": "mail server refused a@x.org", "held": "3 of 10", "late": "not due before"}
    page.get_by_text(shown[kind]).first.wait_for()
    assert tab.axe() == []


def test_a_narrow_screen_needs_no_scrolling_sideways(
    browser: Any, site: Site, filled: dict[str, str]
) -> None:
    tab = Tab(browser, site.url)
    tab.page.set_viewport_size({"width": 360, "height": 740})
    try:
        for path in [*PAGES, f"/jobs/{filled['dead']}"]:
            page = tab.open(path)
            assert page.evaluate("document.documentElement.scrollWidth") <= 360, path
        assert tab.problems == []
    finally:
        tab.close()


def test_the_list_filters_by_text_facet_and_url(tab: Tab, site: Site, filled: dict[str, str]) -> None:
    page = tab.open("/jobs", "Jobs")
    page.keyboard.press("/")
    page.keyboard.type("sta")
    page.get_by_role("option", name="state:").wait_for()
    page.keyboard.press("Tab")
    page.keyboard.type("dea")
    page.keyboard.press("Tab")
    page.wait_for_url("**/jobs?state=dead")
    rows = page.locator(".grid-body [role=row]")
    page.wait_for_function(
        "() => [...document.querySelectorAll('.grid-body .state')].every(e => e.textContent == 'dead')"
    )
    assert rows.count() >= 1
    page.locator(".facets").get_by_role("link", name=re.compile("^slow")).click()
    page.wait_for_url("**/jobs?state=dead&queue=slow")
    page.get_by_text("No job fits").wait_for()
    page.go_back()
    page.wait_for_url("**/jobs?state=dead")
    tab.open("/jobs?tag=blue")
    page.get_by_role("link", name="add").first.wait_for()


def test_an_id_opens_its_job_from_the_filter_and_when_pasted(
    tab: Tab, site: Site, filled: dict[str, str]
) -> None:
    page = tab.open("/jobs", "Jobs")
    page.get_by_role("combobox", name="Filter jobs").fill(filled["done"])
    page.keyboard.press("Enter")
    page.get_by_role("heading", level=1, name="add").wait_for()
    tab.open("/queues", "Queues")
    page.evaluate(
        """id => { const data = new DataTransfer(); data.setData("text", id);
        document.body.dispatchEvent(new ClipboardEvent("paste", {clipboardData: data, bubbles: true})); }""",
        filled["dead"],
    )
    page.get_by_role("heading", level=1, name="send").wait_for()


def test_a_new_job_and_its_states_appear_without_reloading(tab: Tab, site: Site) -> None:
    name = "go-live"
    page = tab.open("/jobs?queue=slow&tag=live", "Jobs")
    page.get_by_text("No job fits").wait_for()
    id = site.app.using(queue="slow", tags=["live"]).enqueue("wait_for", name).id
    row = page.locator(".grid-body [role=row]")
    row.locator(".state.running").wait_for()
    (site.folder / name).touch()
    row.locator(".state.succeeded").wait_for()
    page.locator(".grid").get_by_role("link", name="wait_for").click()
    page.wait_for_url(f"**/jobs/{id.replace(':', '%3A')}")


def test_a_selection_is_changed_after_a_dry_run_that_names_the_number(tab: Tab, site: Site) -> None:
    ids = [site.app.using(delay=3600, tags=["bulk"]).enqueue("add", n).id for n in range(7)]
    page = tab.open("/jobs?tag=bulk", "Jobs")
    for id in ids[:2]:
        page.get_by_role("checkbox", name=f"Select {id}").check()
    page.get_by_role("button", name="cancel the selected jobs").click()
    page.get_by_role("dialog").get_by_text("2 jobs would change").wait_for()
    page.get_by_role("button", name="Cancel 2 jobs").click()
    page.get_by_text("2 jobs changed").wait_for()
    assert [site.app.job(id).status() for id in ids[:3]] == ["cancelled", "cancelled", "scheduled"]
    tab.open("/jobs?tag=bulk&state=scheduled")
    page.get_by_role("button", name="delete all matches").click()
    page.get_by_role("dialog").get_by_text("5 jobs would change").wait_for()
    assert page.get_by_role("list", name="Samples").locator("li").count() == 5
    page.get_by_role("button", name="Delete 5 jobs").click()
    page.get_by_text("No job fits").wait_for()
    assert [site.app.job(id).status() for id in ids] == ["cancelled"] * 2 + ["not_found"] * 5


def test_the_keyboard_moves_selects_opens_and_runs_again(tab: Tab, site: Site) -> None:
    ids = [site.app.using(delay=3600, tags=["keys"]).enqueue("add", n).id for n in range(3)]
    page = tab.open("/jobs?tag=keys", "Jobs")
    page.locator(".grid-body [role=row]").nth(2).wait_for()
    for key in "jjx":
        page.keyboard.press(key)
    page.get_by_text("1 job selected").wait_for()
    assert page.get_by_role("checkbox", name=f"Select {ids[1]}").is_checked()
    page.keyboard.press("e")
    page.get_by_role("dialog").get_by_label("Arguments, a JSON list", exact=False).first.wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("dialog").wait_for(state="hidden")
    page.keyboard.press("?")
    page.get_by_role("dialog").get_by_text("next and previous row").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("dialog").wait_for(state="hidden")
    page.keyboard.press("g")
    page.keyboard.press("q")
    page.get_by_role("heading", level=1, name="Queues").wait_for()


def test_a_job_runs_again_with_other_arguments(tab: Tab, site: Site) -> None:
    id = enqueue(site, "add", 1, 2)
    ended(site, id)
    page = tab.open(f"/jobs/{id}", "add")
    page.get_by_role("button", name="Edit and run").click()
    areas = page.get_by_role("dialog").locator("textarea")
    areas.first.fill("[40, 2")
    page.get_by_role("alert").wait_for()
    assert page.get_by_role("button", name="Run with these").is_disabled()
    areas.first.fill("[40, 2]")
    page.get_by_role("button", name="Run with these").click()
    page.wait_for_url(lambda url: id.replace(":", "%3A") not in url)
    page.get_by_role("region", name="Result").get_by_text("42").wait_for()
    page.get_by_role("link", name=id).wait_for()


def test_a_running_job_is_cancelled(tab: Tab, site: Site) -> None:
    id = site.app.using(queue="slow").enqueue("wait_for", "nothing").id
    page = tab.open(f"/jobs/{id}", "wait_for")
    page.locator(".subtitle .state.running").wait_for()
    page.get_by_role("button", name="Cancel", exact=True).click()
    page.get_by_role("button", name="Cancel it").click()
    page.locator(".subtitle .state.cancelled").wait_for()


def test_a_group_of_errors_is_read_and_replayed(tab: Tab, site: Site) -> None:
    ids = [site.app.using(queue="email", retries=0).enqueue("send", f"user{n}@y.org").id for n in range(4)]
    for id in ids:
        ended(site, id, "dead")
    page = tab.open("/errors?queue=email", "Errors")
    page.get_by_text("ConnectionRefusedError").first.wait_for()
    page.get_by_role("button", name="Look").first.click()
    page.get_by_role("region", name="Traceback of the latest").get_by_text(
        "mail server refused"
    ).first.wait_for()
    (site.folder / "mail-works").touch()
    page.get_by_role("button", name=re.compile("^Replay")).first.click()
    page.get_by_role("dialog").get_by_role("button", name=re.compile("^Replay")).click()
    page.get_by_text("No job is dead").wait_for()
    for id in ids:
        ended(site, id)
    (site.folder / "mail-works").unlink()


def test_a_queue_is_paused_limited_purged_and_resumed(tab: Tab, site: Site) -> None:
    site.app.using(queue="parked", delay=3600).enqueue("add", 1)
    page = tab.open("/queues?q=parked", "Queues")
    page.get_by_role("button", name="Pause parked").click()
    page.get_by_role("dialog").get_by_label("Reason", exact=False).fill("<b>vendor</b> is down")
    page.get_by_role("button", name="Pause it").click()
    page.get_by_role("row").filter(has_text="parked").get_by_text("<b>vendor</b> is down").wait_for()
    tab.open("/", "Now")
    page.get_by_role("button", name="Resume: Queue parked is paused").click()
    page.get_by_text("Queue parked is paused", exact=True).wait_for(state="hidden")
    tab.open("/queues?q=parked", "Queues")
    page.get_by_label("More for parked").click()
    page.get_by_role("button", name="Limits").click()
    page.get_by_role("dialog").get_by_label("Running at most", exact=True).fill("3")
    page.get_by_role("button", name="Set", exact=True).click()
    page.get_by_role("row").filter(has_text="parked").get_by_text("running 3").wait_for()
    page.get_by_label("More for parked").click()
    page.get_by_role("button", name="Purge", exact=True).click()
    page.get_by_role("button", name="Delete 1 job").click()
    page.get_by_text("1 job deleted").wait_for()


def test_a_schedule_is_made_triggered_and_deleted(tab: Tab, site: Site) -> None:
    page = tab.open("/schedules", "Schedules")
    page.get_by_text("at 03:00 every day, Europe/London time").wait_for()
    page.get_by_role("button", name="New schedule").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("weekly")
    dialog.get_by_label("Task").fill("add")
    dialog.get_by_label("Arguments, a JSON list", exact=True).fill("[20, 22]")
    dialog.get_by_role("button", name="Make it").click()
    page.get_by_role("button", name="Trigger weekly").click()
    page.get_by_role("heading", level=1, name="add").wait_for()
    page.get_by_role("region", name="Result").get_by_text("42").wait_for()
    tab.open("/schedules?name=weekly", "Schedules")
    page.get_by_label("More for weekly").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_role("button", name="Delete it").click()
    page.get_by_text("No schedule fits").wait_for()


def test_a_flow_is_drawn_in_layers_and_what_failed_is_retried(tab: Tab, site: Site) -> None:
    nodes = [
        {"name": "first", "task": "add", "args": [1, 2]},
        {"name": "items", "task": "add", "map": [1, 2, 3], "after": ["first"]},
        {"name": "mail", "task": "send", "args": ["flow@z.org"], "after": ["first"], "retries": 0},
        {"name": "last", "task": "echo", "args": [{"$node": "mail"}]},
    ]
    made = httpx.post(f"{site.url}/api/flows", json={"name": "parcel", "nodes": nodes})
    assert made.status_code == 201, made.text
    page = tab.open("/flows", "Flows")
    page.get_by_role("link", name="parcel").click()
    page.get_by_role("heading", level=1, name="parcel").wait_for()
    page.locator(".subtitle .state.failed").wait_for()
    graph = page.get_by_role("region", name="Graph of 4 nodes")
    graph.get_by_role("link", name="mail dead").wait_for()
    graph.get_by_role("link", name=re.compile("^items × 3: 3 done")).wait_for()
    edges = site.get(f"/api/flows/{made.json()['id']}")["edges"]
    assert graph.locator("path.edge").count() == len(edges) >= 2
    assert tab.axe() == []
    page.get_by_role("button", name="Table").click()
    page.get_by_role("row", name=re.compile("^mail send")).wait_for()
    page.get_by_role("button", name="Graph").click()
    (site.folder / "mail-works").touch()
    page.get_by_role("button", name="Retry what failed").click()
    page.locator(".subtitle .state.succeeded").wait_for()
    (site.folder / "mail-works").unlink()
    graph.get_by_role("link", name=re.compile("^mail")).click()
    page.get_by_role("heading", level=1, name="send").wait_for()


def test_the_steps_of_a_durable_job_are_shown(tab: Tab, site: Site) -> None:
    id = enqueue(site, "order", 41)
    page = tab.open(f"/jobs/{id}", "order")
    page.get_by_text("charge", exact=False).first.wait_for()
    page.get_by_role("region", name=re.compile("^Value of charge")).get_by_text("42").wait_for()
    assert tab.axe() == []
    page.get_by_role("button", name=re.compile("^Run again from here: charge")).click()
    page.get_by_role("dialog").get_by_role("button", name="Run again").click()
    page.wait_for_url(lambda url: id.replace(":", "%3A") not in url)
    page.get_by_role("link", name=id).wait_for()


def test_without_a_history_the_pages_say_so(tab: Tab, site: Site) -> None:
    page = tab.open("/?range=24h", "Now")
    page.get_by_text("There is no history", exact=False).wait_for()
    tab.open("/jobs?in=history", "Jobs")
    page.get_by_text("There is no history", exact=True).wait_for()
    tab.page.goto(f"{site.url}/jobs/default:none")
    page.get_by_text("There is no such job").wait_for()
    assert tab.axe() == []


def test_hostile_texts_in_every_field_of_a_job_are_only_shown(tab: Tab, site: Site) -> None:
    ids = []
    for number, text in enumerate(HOSTILE):
        word = "".join(letter for letter in text if letter.isprintable())[:200]
        options: dict[str, Any] = {"tags": [word, "hostile"], "description": text, "key": f"k{number}{word}"}
        options |= {"group": word, "id": f"{number}{word}"}
        ids.append(enqueue(site, "echo", {"nested": [text]}, kwargs={"more": text}, **options))
        ids.append(site.app.using(queue="email", retries=0, tags=["hostile"]).enqueue("send", text).id)
        ids.append(site.app.using(queue="slow", tags=["hostile"]).enqueue("wait_for", "go", text, text).id)
    ended(site, ids[-3])
    ended(site, ids[-2], "dead")
    site.app.queues.pause("hostile", reason=HOSTILE[1], by=HOSTILE[0])
    page = tab.page
    for path in ("/jobs?tag=hostile", "/errors?queue=email", "/queues", "/", "/workers"):
        tab.open(path)
        assert harmed(page) == [], path
    for id in ids:
        tab.page.goto(f"{site.url}/jobs/{percent(id)}")
        page.get_by_role("button", name="Edit and run").click()
        page.get_by_role("dialog").wait_for()
        page.keyboard.press("Escape")
        assert harmed(page) == [], id
        info = site.app.job(id).info()
        page.get_by_text(id, exact=True).first.wait_for()
        if info.description:
            page.get_by_text(info.description).first.wait_for()
    site.app.jobs.cancel(tag="hostile", reason=HOSTILE[0])
    tab.open("/jobs?tag=hostile&state=cancelled")
    assert harmed(page) == []


def percent(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode())


def harmed(page: Any) -> list[str]:
    """Signs that a text was taken for markup or code."""
    found: list[str] = page.evaluate(
        """() => [
            ...(window.harmed ? ["code ran"] : []),
            ...[...document.querySelectorAll("body script, img, iframe, base, style," +
                "[onerror], [onload], [onfocus]")].map(one => one.outerHTML),
            ...[...document.querySelectorAll("a[href]")].map(one => one.getAttribute("href"))
                .filter(href => !href.startsWith("/") && !href.startsWith("#")),
            ...(document.querySelectorAll("svg[onload]").length ? ["svg"] : []),
        ]"""
    )
    return found


def test_the_page_says_when_the_server_is_away_and_comes_back(browser: Any, tmp_path: Path) -> None:
    with running_site(tmp_path / "away") as site:
        port = site.url.rpartition(":")[2]
        tab = Tab(browser, site.url)
        tab.open("/queues", "Queues")
        tab.page.locator(".connection.live").wait_for()
        site.stop()
        tab.page.locator(".connection.reconnecting").wait_for()
        site.command[-1] = f"127.0.0.1:{port}"
        site.start()
        tab.page.locator(".connection.live").wait_for()
        site.app.using(queue="fresh", delay=60).enqueue("add", 1)
        tab.page.get_by_role("link", name="fresh").wait_for()
        tab.close()


def test_a_key_is_asked_for_kept_from_scripts_and_limits_what_is_offered(
    browser: Any, tmp_path: Path
) -> None:
    key = "a-key-of-the-test-0123456789"
    with running_site(tmp_path / "keys", api_keys=f"read:{key}") as site:
        id = site.app.enqueue("add", 1).id
        tab = Tab(browser, site.url)
        page = tab.page
        page.goto(f"{site.url}/jobs")
        page.get_by_label("API key").fill("a-wrong-key-0123456789")
        page.get_by_role("button", name="Enter").click()
        page.get_by_role("alert").get_by_text("nobody knows this key").wait_for()
        assert tab.axe() == []
        page.get_by_label("API key").fill(key)
        page.get_by_role("button", name="Enter").click()
        page.get_by_role("heading", level=1, name="Jobs").wait_for()
        assert page.evaluate("document.cookie") == ""
        (cookie,) = tab.context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
        assert page.get_by_role("link", name="Keys").count() == 0
        tab.open(f"/jobs/{id}", "add")
        assert page.get_by_role("button", name="Edit and run").is_disabled()
        page.get_by_role("button", name="Leave", exact=False).click()
        page.get_by_label("API key").wait_for()
        assert tab.problems == []
        tab.close()
