// Jobs: a filter with completion, facets with counts, a long list newest first, changes to many jobs.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { call, type Job } from "../api";
import { Bulk, type Target } from "../bulk";
import { FilterBar } from "../filterbar";
import { FIELDS, fromQuery, STATE_AFTER, STATES, toText, type Filter } from "../filter";
import { brief, count, counted, duration } from "../format";
import { asApiError, useKey, useLoad } from "../hooks";
import { live } from "../live";
import { Link, jobPath, navigate, pathOf, type Place } from "../router";
import { Rerun } from "../rerun";
import { PastJobs } from "./past";
import { Button, Empty, Failed, Heading, Panel, State, When } from "../ui";
import { VirtualGrid } from "../virtual";

const PAGE = 100;
const KEPT = 20_000; // rows that the page holds at most
const ROW = 40;

type Query = NonNullable<Parameters<typeof call<"get", "/api/jobs">>[2]>["query"];

export default function Jobs({ place }: { place: Place }) {
  if (place.query.get("in") !== "history") return <Kept place={place} />;
  return (
    <>
      <Heading title="Jobs"><Tabs current="history" /></Heading>
      <PastJobs text={place.query.get("q") ?? ""} />
    </>
  );
}

const Tabs = ({ current }: { current: "broker" | "history" }) => (
  <nav class="tabs" aria-label="Source">
    <Link to="/jobs" aria-current={current === "broker" ? "true" : undefined}>kept by the broker</Link>
    <Link to="/jobs?in=history" aria-current={current === "history" ? "true" : undefined}>history</Link>
  </nav>
);

function Kept({ place }: { place: Place }) {
  const filter = fromQuery(place.query);
  const key = toText(filter);
  const list = useJobs(filter, key);
  const [selected, setSelected] = useState<ReadonlySet<string>>(new Set());
  const [active, setActive] = useState(-1);
  const [bulk, setBulk] = useState<Target | null>(null);
  const [rerun, setRerun] = useState<Job | null>(null);
  useEffect(() => {
    setSelected(new Set());
    setActive(-1);
  }, [key]);
  const toggle = (id: string) => setSelected((old) => {
    const next = new Set(old);
    if (!next.delete(id)) next.add(id);
    return next;
  });
  useKey((event) => {
    const job = list.jobs[active];
    if (event.key === "j") setActive((n) => Math.min(list.jobs.length - 1, n + 1));
    else if (event.key === "k") setActive((n) => Math.max(0, n - 1));
    else if (event.key === "x" && job) toggle(job.id);
    else if (event.key === "e" && job) setRerun(job);
    else if (event.key === "Enter" && job && document.activeElement === document.body) navigate(jobPath(job.id));
    else if (event.key === "Escape") setSelected(new Set());
  });
  const all = selected.size > 0 && list.jobs.every((job) => selected.has(job.id));
  const setAll = () => setSelected(all ? new Set() : new Set(list.jobs.slice(0, 1000).map((job) => job.id)));
  return (
    <>
      <Heading title="Jobs">
        {list.total !== null && <span class="muted">{counted(list.total, "job")}</span>}
        <Tabs current="broker" />
      </Heading>
      <FilterBar filter={filter} />
      <div class="with-facets">
        <Facets filter={filter} jobs={list.jobs} />
        <Panel class="flush">
          <Actions selected={selected} filter={filter} total={list.total} act={setBulk} clear={() => setSelected(new Set())} fresh={list.fresh} show={list.reload} />
          {list.error && <Failed error={list.error} retry={list.reload} />}
          {!list.error && !list.loading && list.jobs.length === 0 && <Empty title={key ? "No job fits" : "There are no jobs yet"}>{key ? "The broker keeps unfinished and dead jobs, and finished ones for a day." : "Enqueue one: in Python, with dray enqueue TASK, or POST /api/jobs."}</Empty>}
          <VirtualGrid rows={list.jobs} height={ROW} label="Jobs" active={active} more={list.more} head={<Head all={all} toggle={setAll} />} row={(job, n) => <Row job={job} index={n} active={n === active} selected={selected.has(job.id)} toggle={() => toggle(job.id)} />} />
          {list.loading && <div class="loading" role="status">Loading …</div>}
        </Panel>
      </div>
      {bulk && <Bulk target={bulk} close={(changed) => { setBulk(null); if (changed) { setSelected(new Set()); list.reload(); } }} />}
      {rerun && <Rerun job={rerun} close={() => setRerun(null)} />}
    </>
  );
}

/** Pages of jobs that fit. Their states follow the events; new jobs are counted until they are asked for. */
function useJobs(filter: Filter, key: string) {
  const [jobs, setJobs] = useState<Job[]>([]);
  const [state, setState] = useState<{ cursor: string | null; total: number | null; loading: boolean; error: ReturnType<typeof asApiError> | null }>({ cursor: null, total: null, loading: true, error: null });
  const [fresh, setFresh] = useState(0);
  const [turn, setTurn] = useState(0);
  const busy = useRef(false);
  const read = async (cursor: string | null, signal?: AbortSignal) => {
    busy.current = true;
    setState((old) => ({ ...old, loading: true, error: null }));
    try {
      const page = await call("get", "/api/jobs", { query: { ...filter, limit: PAGE, cursor: cursor ?? undefined } as Query, signal });
      setJobs((old) => (cursor === null ? page.jobs : [...old, ...page.jobs.filter((job) => !old.some((other) => other.id === job.id))]));
      setState((old) => ({ cursor: page.cursor, total: cursor === null ? page.total : old.total, loading: false, error: null }));
    } catch (error) {
      if (!signal?.aborted) setState((old) => ({ ...old, loading: false, error: asApiError(error) }));
    } finally {
      busy.current = false;
    }
  };
  useEffect(() => {
    const abort = new AbortController();
    setFresh(0);
    void read(null, abort.signal);
    return () => abort.abort();
  }, [key, turn]);
  const reload = () => setTurn((n) => n + 1);
  const latest = useRef({ filter, jobs });
  latest.current = { filter, jobs };
  useEffect(() => live.onChange((changes) => {
    if (changes.length === 0) return reload();
    const states = new Map<string, string>();
    let arrived = 0;
    for (const change of changes) {
      if (latest.current.filter.queue && latest.current.filter.queue !== change.queue) continue;
      for (const event of change.events) {
        if (event.kind === "put") arrived++;
        if (STATE_AFTER[event.kind]) states.set(event.id, STATE_AFTER[event.kind] as string);
      }
    }
    if (latest.current.jobs.some((job) => states.has(job.id))) setJobs((old) => old.map((job) => (states.has(job.id) ? { ...job, status: states.get(job.id) as string } : job)));
    if (arrived > 0) setFresh((n) => n + arrived);
  }), []);
  // The list follows by itself only while nothing can be lost: at its top, with one page.
  useEffect(() => {
    if (fresh === 0 || scrollY > 80 || jobs.length > PAGE || document.querySelector(".grid [aria-selected=true]")) return;
    const timer = setTimeout(reload, 800);
    return () => clearTimeout(timer);
  }, [fresh]);
  const more = () => {
    if (state.cursor !== null && !busy.current && jobs.length < KEPT && !state.error) void read(state.cursor);
  };
  return { jobs, ...state, fresh, reload, more };
}

function Head({ all, toggle }: { all: boolean; toggle: () => void }) {
  return (
    <div role="row" class="grid-row head">
      <span role="columnheader"><input type="checkbox" aria-label="Select all that are loaded" checked={all} onChange={toggle} /></span>
      <span role="columnheader">Task</span>
      <span role="columnheader">State</span>
      <span role="columnheader" class="wide-only">Note</span>
      <span role="columnheader" class="mid-only">Queue</span>
      <span role="columnheader" class="wide-only">Took</span>
      <span role="columnheader">Created</span>
    </div>
  );
}

function Row({ job, index, active, selected, toggle }: { job: Job; index: number; active: boolean; selected: boolean; toggle: () => void }) {
  const took = job.started_at && job.finished_at ? duration((Date.parse(job.finished_at) - Date.parse(job.started_at)) / 1000) : "";
  return (
    <div role="row" class={`grid-row ${active ? "active" : ""}`} aria-rowindex={index + 2} aria-selected={selected}>
      <span role="gridcell"><input type="checkbox" aria-label={`Select ${job.id}`} checked={selected} onChange={toggle} /></span>
      <span role="gridcell" class="task"><Link to={jobPath(job.id)}>{job.task}</Link><small>{preview(job)}</small></span>
      <span role="gridcell"><State name={job.status} /></span>
      <span role="gridcell" class="wide-only note">{note(job)}</span>
      <span role="gridcell" class="mid-only">{job.queue}</span>
      <span role="gridcell" class="wide-only number">{took}</span>
      <span role="gridcell"><When at={job.created_at} /></span>
    </div>
  );
}

/** The beginning of its arguments. */
function preview(job: Job): string {
  if (job.args === null) return job.id;
  const words = [...job.args.map((value) => JSON.stringify(value)), ...Object.entries(job.kwargs ?? {}).map(([name, value]) => `${name}=${JSON.stringify(value)}`)];
  return words.join(", ").slice(0, 120);
}

function note(job: Job): string {
  if (job.status === "dead" || job.status === "cancelled") return job.reason ?? job.error?.type ?? "";
  if (job.progress && job.status === "running") return `${job.progress.note || "progress"}${job.progress.total ? ` ${Math.round((100 * (job.progress.done ?? 0)) / job.progress.total)} %` : ""}`;
  if (job.error && job.status === "retrying") return `${job.error.type}: ${job.error.message}`;
  return job.description;
}

function Actions({ selected, filter, total, act, clear, fresh, show }: { selected: ReadonlySet<string>; filter: Filter; total: number | null; act: (target: Target) => void; clear: () => void; fresh: number; show: () => void }) {
  const filtered = FIELDS.some((name) => filter[name]);
  const buttons = (target: Omit<Target, "action">, label: string) => (["cancel", "retry", "delete", "reschedule"] as const).map((action) => (
    <Button key={action} needs="admin" kind={action === "delete" ? "danger" : "plain"} onClick={() => act({ action, ...target })} aria-label={`${action} ${label}`}>{action[0]?.toUpperCase()}{action.slice(1)}</Button>
  ));
  return (
    <div class="actions-bar">
      {selected.size > 0 ? (
        <>
          <strong>{counted(selected.size, "job")} selected</strong>
          {buttons({ ids: [...selected] }, "the selected jobs")}
          <Button kind="quiet" onClick={clear}>Clear</Button>
        </>
      ) : filtered && !filter.q ? (
        <>
          <span class="muted">All {total === null ? "" : `${count(total)} `}matches:</span>
          {buttons({ filter }, "all matches")}
        </>
      ) : (
        <span class="muted">Select jobs, or filter, to act on many.</span>
      )}
      {fresh > 0 && <Button kind="main" onClick={show}>{brief(fresh)} new – show</Button>}
    </div>
  );
}

function Facets({ filter, jobs }: { filter: Filter; jobs: Job[] }) {
  const queues = useLoad("queues", (signal) => call("get", "/api/queues", { signal }));
  const found = queues.data?.queues ?? [];
  const inScope = found.filter((queue) => !filter.queue || queue.name === filter.queue);
  const states = STATES.map((state) => [state, inScope.reduce((sum, queue) => sum + (queue.counts[state] ?? 0), 0)] as const);
  const depth = (name: string) => Object.entries(found.find((queue) => queue.name === name)?.counts ?? {}).filter(([state]) => !filter.state || state === filter.state).reduce((sum, [, n]) => sum + n, 0);
  const tasks = useMemo(() => tally(jobs.map((job) => job.task)), [jobs]);
  const tags = useMemo(() => tally(jobs.flatMap((job) => job.tags)), [jobs]);
  return (
    <aside class="facets" aria-label="Facets">
      <Facet title="State" field="state" filter={filter} values={states} />
      <Facet title="Queue" field="queue" filter={filter} values={found.map((queue) => [queue.name, depth(queue.name)] as const).sort((a, b) => b[1] - a[1]).slice(0, 12)} />
      <Facet title="Task, of those loaded" field="task" filter={filter} values={tasks} />
      {tags.length > 0 && <Facet title="Tag, of those loaded" field="tag" filter={filter} values={tags} />}
    </aside>
  );
}

function tally(words: string[]): [string, number][] {
  const found = new Map<string, number>();
  for (const word of words) found.set(word, (found.get(word) ?? 0) + 1);
  return [...found].sort((a, b) => b[1] - a[1]).slice(0, 10);
}

function Facet({ title, field, filter, values }: { title: string; field: "state" | "queue" | "task" | "tag"; filter: Filter; values: readonly (readonly [string, number])[] }) {
  return (
    <section>
      <h2>{title}</h2>
      <ul>
        {values.map(([value, n]) => (
          <li key={value}>
            <Link to={pathOf("/jobs", { ...filter, [field]: filter[field] === value ? "" : value })} aria-current={filter[field] === value ? "true" : undefined}>
              {field === "state" ? <State name={value} /> : <span class="name">{value}</span>}
              <span class="number">{brief(n)}</span>
            </Link>
          </li>
        ))}
      </ul>
    </section>
  );
}
